#pragma once
// Completions: finished batches on their way back to the caller.
//
// Threads: push() from any worker; drain() from any one thread at a time.
// Limits: holds at most the batches that were submitted; push() never blocks.

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/event_fd.hpp"
#include "redis/batch.hpp"

namespace kvferry::redis {

class Completions {
 public:
  explicit Completions(EventFd event) noexcept : event_(std::move(event)) {}

  // Readable while at least one batch waits. Owned by this object.
  [[nodiscard]] int fd() const noexcept { return event_.fd(); }

  // Signals only when the queue was empty: one wake-up drains everything that is ready, where one
  // per batch would cost 5-20 times the throughput of the consumer's event loop.
  void push(std::shared_ptr<Batch> batch) {
    bool was_empty = false;
    {
      const std::lock_guard lock(mutex_);
      was_empty = ready_.empty();
      ready_.push_back(std::move(batch));
    }
    if (was_empty) event_.signal();
  }

  // Takes everything that is ready, oldest first.
  std::vector<std::shared_ptr<Batch>> drain() {
    event_.clear();  // before taking: a push after this signals again
    const std::lock_guard lock(mutex_);
    return std::exchange(ready_, {});
  }

 private:
  EventFd event_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Batch>> ready_;
};

}  // namespace kvferry::redis
