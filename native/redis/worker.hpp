#pragma once
// Worker: the connections that one I/O thread owns, to every node of the router, and the rounds of
// its loop. It has neither thread, poller nor clock: IoThread drives it, and so does the
// simulation.
//
// A round: step() until it is over, then next_round(), then a wait until then, until a socket is
// ready, or until `signal` is called.
//
// Threads: wake() and release_withdrawn() from any; everything else is that of its driver.
// Failure: without memory for one connection that connection ends. Any other exception leaves
// step(), and then fail() and shut_down() must follow.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "net/resolver.hpp"
#include "redis/connection.hpp"
#include "redis/router.hpp"

namespace kvferry::redis {

class Worker {
 public:
  // What the workers of a client share.
  struct Surroundings {
    const Config& config;
    Router& router;
    net::Transport& transport;
    // Where to dial; the callback may come from any thread.
    std::function<void(const net::Endpoint&, net::Resolver::Callback)> resolve;
    CredentialSource* credentials;  // null: those of the configuration
    LogSink& log;
  };

  // Workers 0 to config.workers - 1 share the data connections of each node. One more, `index` ==
  // config.workers, owns the small-command lanes alone: a thread that is copying megabytes into a
  // socket cannot answer an EXISTS. `watcher` says which sockets are ready. `signal`: there is
  // something to do, so the wait should end; called from any thread, and must not throw.
  Worker(const Surroundings& shared, std::size_t index, net::Watcher& watcher,
         std::function<void()> signal, Nanos now);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // One piece of a round: takes a socket from `ready`; then messages; then one connection sends and
  // fires its timers. False: the round is over.
  [[nodiscard]] bool step(std::span<const net::Ready>& ready, Nanos now);
  // Between two rounds: settles what has waited too long. When the next one begins at the latest.
  [[nodiscard]] Nanos next_round(Nanos now);

  // There may be something to do for every connection. Cheap when the worker is awake already.
  void wake() noexcept;
  // There may be for the connections to this node; those to others are not looked at.
  void wake(const Server& server) noexcept;
  // Batches were cancelled: releases their commands soon.
  void release_withdrawn() noexcept;

  // The client serves nothing any more, and nothing hangs.
  void fail(std::string_view problem) noexcept;
  // Ends every connection. Nothing may follow.
  void shut_down(Nanos now) noexcept;

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
  struct Owned {
    std::uint64_t token;
    std::shared_ptr<Server> server;
    std::unique_ptr<Connection> connection;
    Nanos due = 0;         // when it wants to be called
    bool touched = false;  // listed in touched_
  };

  void signal() noexcept;
  // Connections to nodes that are new; none to nodes that are gone.
  void follow_router(Nanos now);
  void add_node(const Router::Node& node, Nanos now);
  // Without memory for it the connection ends.
  template <typename Act>
  void guard(Connection& connection, Nanos now, Act act);
  void begin_round(Nanos now);
  void take_messages(Nanos now);
  // Null: it is gone.
  [[nodiscard]] Owned* find(std::uint64_t token) noexcept;
  // The connection is looked at in this round.
  void touch(Owned& owned) noexcept;
  void touch(const Server* server) noexcept;
  void touch_due(Nanos now) noexcept;
  // What is touched sends, and says when it wants to be called next.
  void serve(Owned& owned, Nanos now);

  const Surroundings shared_;
  const std::size_t index_;
  const std::function<void()> signal_;
  Connection::Environment environment_;
  std::atomic<bool> wake_pending_{false};
  std::atomic<bool> release_pending_{false};
  std::atomic<std::uint64_t> visits_{0};
  std::mutex mutex_;  // guards what follows, up to told_count_
  std::vector<Resolved> resolved_;
  std::vector<Authorized> authorized_;
  std::array<const Server*, 8> told_{};    // of whom there is news; they may be gone
  std::size_t told_count_ = 0;             // more than there is room for: of all
  std::uint64_t generation_ = UINT64_MAX;  // of the router's nodes, as followed last
  std::uint64_t tokens_ = 0;               // given out
  std::vector<Owned> connections_;         // by token; those to one node are neighbours
  std::unordered_map<const Server*, std::uint64_t> first_tokens_;
  std::vector<std::size_t> touched_;  // indices of connections_
  std::size_t served_ = 0;            // of touched_, in this round
  bool begun_ = false;                // the round has taken its messages
  bool all_touched_ = true;
  Nanos due_ = 0;  // not after the first that is due
  Nanos sweep_at_ = 0;
};

}  // namespace kvferry::redis
