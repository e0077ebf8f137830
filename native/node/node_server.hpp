#pragma once
// NodeServer: a RESP server over values in memory: listeners, I/O threads, and the store between
// them.
//
//   Listener(s) ── accept thread ──► NodeWorker (thread) ── Session ──► Values
//                                     Mailbox ◄── Clients ◄── changes
//
// Threads: "kvferry-node" accepts, deals connections out, and removes what has expired;
//   "kvferry-node-N" have the connections. open(), stop() and the destructor belong to one thread;
//   the rest is for any.
// Lifetime: stop() ends connections and threads, and then keeps the state, if it was told where.
// Fork: the child's copy does nothing; it must not be used there.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/event_fd.hpp"
#include "base/result.hpp"
#include "base/thread.hpp"
#include "net/address.hpp"
#include "net/listener.hpp"
#include "net/tls.hpp"
#include "node/context.hpp"
#include "node/lent_values.hpp"
#include "node/pace.hpp"
#include "node/state_file.hpp"
#include "node/value_store.hpp"
#include "node/worker.hpp"

namespace kvferry::node {

struct NodeOptions {
  // Where it lends, "*" in the path of a Unix socket stands for the port of the first address.
  std::vector<net::Endpoint> listen;
  net::TlsConfig tls{};  // for TCP, where enabled; a Unix socket is open to our user alone
  bool lends = false;    // no store of its own: what caches lend, see NodeServer::lend()
  StoreOptions store{};
  std::vector<UserOptions> users{};
  std::string state_file{};  // empty: none
  std::size_t threads = 4;
  std::size_t connections_max = 10'000;
  std::size_t in_flight_bytes_max = 0;  // 0: half of the store
  SessionLimits limits{};
  PaceLimits pace{};
  std::string version = "0";
};

class NodeServer {
 public:
  // Reads the state, listens and serves. Fails with: kInvalidArgument for options; kConnect when an
  // address is taken; kCertificate for TLS files of no use; kSystem without memory, threads or
  // descriptors, or when the state cannot be read.
  static Result<std::unique_ptr<NodeServer>> open(NodeOptions options);
  ~NodeServer();
  NodeServer(const NodeServer&) = delete;
  NodeServer& operator=(const NodeServer&) = delete;

  // Fails with: kSystem when the state cannot be written; the node has ended all the same.
  Outcome stop();

  // Lends what a cache has, until recall() of the prefix; see LentValues. Requires: `lends`.
  Outcome lend(std::shared_ptr<cache::ChunkCache> cache, const std::string& prefix,
               std::uint64_t identity, std::size_t chunk_bytes) {
    return lent_->lend(std::move(cache), prefix, identity, chunk_bytes);
  }
  bool recall(const std::string& prefix) { return lent_->recall(prefix); }
  bool mark(const std::string& prefix, const std::string& text, Nanos lent_until) {
    return lent_->mark(prefix, text, lent_until);
  }
  [[nodiscard]] bool lends() const noexcept { return lent_ != nullptr; }

  // Has readers reach this memory by one-sided reads; see Agent.
  void set_agent(std::uint64_t incarnation, std::string metadata) {
    agent_.set(incarnation, std::move(metadata));
  }

  // Where it listens, with ports.
  [[nodiscard]] std::vector<net::Endpoint> endpoints() const;
  [[nodiscard]] ValuesUsage usage() const { return values_->usage(); }
  [[nodiscard]] const Context& context() const noexcept { return *context_; }
  [[nodiscard]] const Loaded& loaded() const noexcept { return loaded_; }

 private:
  NodeServer(NodeOptions options, Access access, EventFd event);
  Outcome start();
  // False: there are no descriptors left.
  bool accept_all();
  bool accepted_all();  // and nothing thrown
  void run();

  const NodeOptions options_;
  const Access access_;
  Clients clients_;
  Counters counters_;
  Agent agent_;
  std::unique_ptr<InFlight> in_flight_;
  std::unique_ptr<Values> values_;
  ValueStore* store_ = nullptr;  // values_, if it is that
  LentValues* lent_ = nullptr;   // or that
  std::unique_ptr<Context> context_;
  Loaded loaded_;

  EventFd event_;
  std::atomic<bool> stopping_{false};  // relaxed: event_ makes it seen
  std::vector<net::Listener> listeners_;
  std::shared_ptr<net::TlsContext> tls_;  // owners: this, and its streams; null: none
  std::vector<std::unique_ptr<NodeWorker>> workers_;
  std::vector<Thread> threads_;
};

}  // namespace kvferry::node
