#pragma once
// Worker: one I/O thread and the connections it owns, to every node of the router.
//
// Threads: wake(), release_withdrawn() and stop() from any thread; everything else is the worker's
// own. A worker that meets an unexpected exception fails its connections, never the process.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
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
  // There may be something to do for every connection. Cheap when the worker is awake already.
  void wake() noexcept;
  // There may be for the connections to this node; those to others are not looked at.
  void wake(const Server& server) noexcept;
  // Batches were cancelled: lets go of their commands soon.
  void release_withdrawn() noexcept;
  // Ends every connection and the thread; returns when both have ended.
  void stop() noexcept;
  // How often it has waited for something to do; any thread.
  [[nodiscard]] std::uint64_t wake_ups() const noexcept {
    return wake_ups_.load(std::memory_order_relaxed);
  }
  // How many connections it has looked at; any thread.
  [[nodiscard]] std::uint64_t visits() const noexcept {
    return visits_.load(std::memory_order_relaxed);
  }

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
  void signal() noexcept;
  // Connections to nodes that are new; none to nodes that are gone.
  void follow_router(Nanos now);
  void add_node(const Router::Node& node);
  void loop();
  // Without memory for it the connection ends.
  template <typename Act>
  void guard(Connection& connection, Act act);
  void take_messages(Nanos now);
  struct Owned {
    std::uint64_t token;
    std::shared_ptr<Server> server;
    std::unique_ptr<Connection> connection;
    Nanos due = 0;         // when it wants to be called
    bool touched = false;  // listed in touched_
  };
  // Null: it is gone.
  [[nodiscard]] Owned* find(std::uint64_t token) noexcept;
  // The connection is looked at before the next wait.
  void touch(Owned& owned) noexcept;
  void touch(const Server* server) noexcept;
  void touch_due(Nanos now);
  // What is touched sends, and says when it wants to be called next.
  void serve(Nanos now);

  const Surroundings shared_;
  const std::size_t index_;
  net::Poller poller_;
  Connection::Environment environment_;
  EventFd wake_event_;
  std::atomic<bool> wake_pending_{false};
  std::atomic<bool> release_pending_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> wake_ups_{0};
  std::atomic<std::uint64_t> visits_{0};
  std::mutex mutex_;  // guards what follows, up to told_
  std::vector<Resolved> resolved_;
  std::vector<Authorized> authorized_;
  std::array<const Server*, 8> told_{};    // of whom there is news; they may be gone
  std::size_t told_count_ = 0;             // more than there is room for: of all
  std::uint64_t generation_ = UINT64_MAX;  // of the router's nodes, as followed last
  std::uint64_t tokens_ = 0;               // given out
  std::vector<Owned> connections_;         // by token; those to one node are neighbours
  std::unordered_map<const Server*, std::uint64_t> first_tokens_;
  std::vector<std::size_t> touched_;  // indices of connections_
  bool all_touched_ = true;
  Nanos due_ = 0;  // not after the first that is due
  Thread thread_;
};

}  // namespace kvferry::redis
