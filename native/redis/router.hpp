#pragma once
// Router: the nodes of a client and which of them a command goes to.
//
// A standalone server is one node for every slot. A cluster has a node for each shard, and its
// replicas if reads may go there; a Sentinel's master is one node that another replaces. apply()
// brings a new map: nodes that left give their work back, and it is routed again.
// Before the first map, work waits in a node of its own, `unmapped_`, which has a breaker like any.
//
// Threads: any. The map is an immutable snapshot; a MOVED replaces it by one that differs.
// Limits: nodes_max nodes, kUnmappedNodesMax beyond the map, kRedirectsMax redirects of one
// command.

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "redis/cluster/slot_map.hpp"
#include "redis/server.hpp"

namespace kvferry::redis {

class Router {
 public:
  static constexpr std::size_t kUnmappedNodesMax = 16;  // nodes that only redirects have named
  static constexpr int kRedirectsMax = 16;

  Router(const Config& config, LogSink& log, Dispatcher& dispatcher);

  // Spreads the commands of a batch over the nodes. Fails with: kCapacity; nothing was taken.
  Outcome submit(const std::shared_ptr<Batch>& batch);
  // One command to the node that has its key; its batch must be running.
  void route(Work work);
  void redirected(AskedNode& from, Work work, std::string_view answer, Nanos now);

  // The topology as it is now. The first one routes what waited for it. Fails with: kCapacity (more
  // nodes than nodes_max; the earlier map stays).
  Outcome apply(const SlotMap& map, Nanos now);
  // There is none: work that waits for the first is refused once that is certain.
  void no_topology(const Error& error);

  // Sends on what waited for its node to be ready; when to call next.
  Nanos release_parked(Nanos now);

  // Who serves slots, as "host:port"; empty before the first map.
  [[nodiscard]] std::vector<std::string> primaries() const;

  struct Node {
    std::size_t ordinal;  // of its creation: spreads the nodes' connections over the workers
    std::shared_ptr<Server> server;
    Nanos absent_since = kNever;  // when the map no longer named it
  };
  [[nodiscard]] std::vector<Node> nodes() const;
  // Changes whenever nodes() does.
  [[nodiscard]] std::uint64_t generation() const noexcept {
    return generation_.load(std::memory_order_acquire);
  }

  // What waits everywhere: settles what expired or was cancelled, and sends on what was parked long
  // enough; or settles all of it.
  void sweep(Nanos now);
  void refuse_all(Status status, Reason why);
  void fail_for_good(std::string_view why);
  [[nodiscard]] std::size_t waiting() const;

  // Whether any node may answer, and why not.
  [[nodiscard]] bool available() const;
  [[nodiscard]] std::string down_reason() const;
  // Of nodes that are gone.
  [[nodiscard]] const Stats& former() const noexcept { return former_; }

 private:
  struct Shard {
    std::shared_ptr<Server> primary;
    std::vector<std::shared_ptr<Server>> replicas;
    bool operator==(const Shard&) const = default;
  };
  struct View {
    std::vector<Shard> shards;
    std::vector<std::uint16_t> slots;  // index into shards; empty: all slots are of shard 0
    std::size_t named = 0;             // nodes that the map names
    bool operator==(const View&) const = default;
  };
  struct Parked {
    Nanos until;
    Work work;
  };

  [[nodiscard]] std::shared_ptr<const View> view() const;
  // Null: nobody serves the slot, or the node that the batch is for is none.
  [[nodiscard]] Server* target(const View& view, const Batch& batch,
                               const Command& command) noexcept;
  [[nodiscard]] Server& reader(const Shard& shard) noexcept;
  void enqueue(Server& server, Work work);
  void check_after_push(Server& server);
  void park(Work work, Nanos until);
  // Null: there are too many. `by_redirect`: no map has named it.
  std::shared_ptr<Server> node_at(const net::Endpoint& endpoint, NodeRole role, bool by_redirect);
  void move_slot(std::uint16_t slot, const std::shared_ptr<Server>& to);
  void keep_counters(Server& server);

  const Config& config_;
  LogSink& log_;
  Dispatcher& dispatcher_;
  Server unmapped_;  // no connection ever serves it
  Stats former_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<std::uint32_t> turn_{0};  // of the replicas

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, Node> nodes_;
  std::size_t created_ = 0;
  std::shared_ptr<const View> view_;  // null before the first map
  std::vector<Parked> parked_;
};

}  // namespace kvferry::redis
