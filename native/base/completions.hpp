#pragma once
// Completions: finished requests on their way back to the caller.
//
// Threads: push() from any; drain() from any one thread at a time.
// Lifetime: shared with whoever still looks at a request, e.g. the thread that finished it.
// Limits: holds at most the requests that were submitted; push() never blocks.

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

  // Signals only when the queue was empty: one wake-up drains everything that is ready, where one
  // per request would cost 5-20 times the throughput of the consumer's event loop.
  void push(std::shared_ptr<Request> request) {
    bool was_empty = false;
    {
      const std::lock_guard lock(mutex_);
      was_empty = ready_.empty();
      ready_.push_back(std::move(request));
    }
    if (was_empty) event_.signal();
  }

  // Takes everything that is ready, oldest first.
  std::vector<std::shared_ptr<Request>> drain() {
    event_.clear();  // before taking: a push after this signals again
    const std::lock_guard lock(mutex_);
    return std::exchange(ready_, {});
  }

 private:
  EventFd event_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Request>> ready_;
};

}  // namespace kvferry
