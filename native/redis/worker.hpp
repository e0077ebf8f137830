#pragma once
// Worker: one I/O thread and the connections it owns.
//
// Threads: wake(), release_withdrawn() and stop() from any thread; everything else is the worker's
// own. A worker that meets an unexpected exception fails its connections, never the process.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/event_fd.hpp"
#include "base/thread.hpp"
#include "net/poller.hpp"
#include "net/resolver.hpp"
#include "redis/connection.hpp"
#include "redis/server.hpp"

namespace kvferry::redis {

class Worker {
 public:
  // Workers 0 to config.workers - 1 own the data connections whose index modulo their number is
  // `index`. One more, `index` == config.workers, owns the small-command lane alone: a thread that
  // is copying megabytes into a socket cannot answer an EXISTS. Fails with: kSystem.
  static Result<std::unique_ptr<Worker>> open(Server& server, net::Resolver& resolver,
                                              std::size_t index);

  void start();
  // There may be something to do. Cheap when the worker is awake already.
  void wake() noexcept;
  // Batches were cancelled: lets go of their commands soon.
  void release_withdrawn() noexcept;
  // Ends every connection and the thread; returns when both have ended.
  void stop() noexcept;

 private:
  struct Resolved {
    std::uint64_t token;
    std::uint64_t dial;
    Result<std::vector<net::Address>> addresses;
  };

  Worker(Server& server, net::Resolver& resolver, std::size_t index, net::Poller poller,
         EventFd wake_event);
  void run() noexcept;
  void loop();
  void take_messages(Nanos now);
  [[nodiscard]] Connection* find(std::uint64_t token) noexcept;

  Server& server_;
  net::Resolver& resolver_;
  const std::size_t index_;
  net::Poller poller_;
  EventFd wake_event_;
  std::atomic<bool> wake_pending_{false};
  std::atomic<bool> release_pending_{false};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // guards resolved_
  std::vector<Resolved> resolved_;
  struct Owned {
    std::uint64_t token;
    std::unique_ptr<Connection> connection;
  };
  std::vector<Owned> connections_;
  Thread thread_;
};

}  // namespace kvferry::redis
