#pragma once
// IoThread: a thread with a poller, which drives one Worker.
//
// Threads: stop() from any but its own. Failure: when its worker cannot go on, the client fails
// closed, with a line of the log; the process lives.

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/event_fd.hpp"
#include "base/thread.hpp"
#include "net/poller.hpp"
#include "redis/worker.hpp"

namespace kvferry::redis {

class IoThread {
 public:
  // Fails with: kSystem.
  static Result<std::unique_ptr<IoThread>> open(const Worker::Surroundings& shared,
                                                std::size_t index);
  // Throws std::system_error without resources.
  void start();
  // Ends every connection and the thread; returns when both have ended.
  void stop() noexcept;
  [[nodiscard]] Worker& worker() noexcept { return worker_; }
  // How often it has waited for something to do; any thread.
  [[nodiscard]] std::uint64_t wake_ups() const noexcept {
    return wake_ups_.load(std::memory_order_relaxed);
  }

 private:
  IoThread(const Worker::Surroundings& shared, std::size_t index, net::Poller poller,
           EventFd wake_event);
  void run() noexcept;
  void loop();

  const std::size_t index_;
  net::Poller poller_;
  const EventFd wake_event_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> wake_ups_{0};
  Worker worker_;
  Thread thread_;
};

}  // namespace kvferry::redis
