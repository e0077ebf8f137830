#pragma once
// Completions: finished requests on their way back to the caller.
//
// Threads: push() from any; drain() from any one thread at a time.
// Lifetime: shared with whoever still looks at a request, e.g. the thread that finished it.
// Limits: holds at most the requests that were submitted. push() never blocks, and finds room where
// reserve() was called for its request before: what finishes is told also when memory has run out.

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/event_fd.hpp"

namespace kvferry {

template <typename Request>
class Completions {
 public:
  explicit Completions(EventFd event) noexcept : event_(std::move(event)) {}

  // Readable while at least one request waits. Owned by this object.
  [[nodiscard]] int fd() const noexcept { return event_.fd(); }

  // One request more may be pushed. Throws std::bad_alloc.
  void reserve() {
    const std::lock_guard lock(mutex_);
    const std::size_t needed = ready_.size() + expected_ + 1;
    if (needed > ready_.capacity()) ready_.reserve(std::max(needed, 2 * ready_.capacity()));
    ++expected_;
  }

  // One of them will not be pushed after all.
  void unreserve() {
    const std::lock_guard lock(mutex_);
    --expected_;
  }

  // Signals only when the queue was empty: one wake-up drains everything that is ready, where one
  // per request would cost 5-20 times the throughput of the consumer's event loop.
  void push(std::shared_ptr<Request> request) {
    bool was_empty = false;
    {
      const std::lock_guard lock(mutex_);
      was_empty = ready_.empty();
      ready_.push_back(std::move(request));
      if (expected_ > 0) --expected_;
    }
    if (was_empty) event_.signal();
  }

  // Takes everything that is ready, oldest first.
  std::vector<std::shared_ptr<Request>> drain() {
    event_.clear();  // before taking: a push after this signals again
    const std::lock_guard lock(mutex_);
    if (ready_.empty()) return {};
    std::vector<std::shared_ptr<Request>> next;
    next.reserve(expected_);
    return std::exchange(ready_, std::move(next));
  }

 private:
  EventFd event_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Request>> ready_;
  std::size_t expected_ = 0;  // for which there is room
};

}  // namespace kvferry
