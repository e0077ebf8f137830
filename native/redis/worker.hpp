#pragma once
// Worker: one I/O thread and the connections it owns, to every node of the router.
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
#include "redis/router.hpp"
#include "redis/same_host.hpp"

namespace kvferry::redis {

class Worker {
 public:
  // What the workers of a client share.
  struct Surroundings {
    const Config& config;
    Router& router;
    net::Resolver& resolver;
    SameHost* same_host;  // null: the resolver says where to dial
    net::Transport& transport;
    CredentialSource* credentials;  // null: those of the configuration
    LogSink& log;
  };

  // Workers 0 to config.workers - 1 share the data connections of each node. One more, `index` ==
  // config.workers, owns the small-command lanes alone: a thread that is copying megabytes into a
  // socket cannot answer an EXISTS. Fails with: kSystem.
  static Result<std::unique_ptr<Worker>> open(const Surroundings& shared, std::size_t index);

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

  struct Authorized {
    std::uint64_t token;
    std::uint64_t dial;
    Result<Credentials> credentials;
  };

  Worker(const Surroundings& shared, std::size_t index, net::Poller poller, EventFd wake_event);
  void run() noexcept;
  // Connections to nodes that are new; none to nodes that are gone.
  void follow_router(Nanos now);
  void add_node(const Router::Node& node);
  void loop();
  // False: there was no memory for it, and the connection has ended.
  template <typename Act>
  bool guard(Connection& connection, Act act);
  void take_messages(Nanos now);
  [[nodiscard]] Connection* find(std::uint64_t token) noexcept;

  const Surroundings shared_;
  const std::size_t index_;
  net::Poller poller_;
  Connection::Environment environment_;
  EventFd wake_event_;
  std::atomic<bool> wake_pending_{false};
  std::atomic<bool> release_pending_{false};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // guards resolved_ and authorized_
  std::vector<Resolved> resolved_;
  std::vector<Authorized> authorized_;
  std::uint64_t generation_ = UINT64_MAX;  // of the router's nodes, as followed last
  std::uint64_t tokens_ = 0;               // given out
  struct Owned {
    std::uint64_t token;
    std::shared_ptr<Server> server;
    std::unique_ptr<Connection> connection;
  };
  std::vector<Owned> connections_;
  Thread thread_;
};

}  // namespace kvferry::redis
