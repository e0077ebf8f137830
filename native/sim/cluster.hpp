#pragma once
// Cluster: all nodes of a schedule and what happens to them: one node, a master with a replica, or
// shards that hand slots to each other. It knows how things are; each node knows what it has heard.

#include <memory>
#include <vector>

#include "redis/cluster/slot_map.hpp"
#include "sim/network.hpp"
#include "sim/node.hpp"

namespace kvferry::sim {

class Cluster {
 public:
  explicit Cluster(const NodeContext& context);

  [[nodiscard]] Network::Welcome welcome(std::size_t node) const noexcept;

  // Some node serves one command that has arrived. False: none can.
  bool serve(Network& network);
  // Something is heard, copied or moved between nodes. False: there is nothing.
  bool converse();
  void replicate_all();
  // When a node that sleeps wakes up.
  [[nodiscard]] Nanos next() const noexcept;

  // What somebody who asks is told now; an Error when nobody answers.
  [[nodiscard]] Result<redis::SlotMap> map();

  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  [[nodiscard]] Node& node(std::size_t index) noexcept { return *nodes_[index]; }
  // A node that is up; null when none is.
  Node* pick_up() noexcept;

  // Trouble.
  void kill(Network& network, std::size_t node, bool silently);
  void restart(std::size_t node, bool keeps_data);
  // The replica of a lost primary takes its place. False: there is none, or slots are moving.
  bool promote(std::size_t node);
  bool start_migration();
  // Everything is up, decided and known to all.
  void heal();

 private:
  [[nodiscard]] int replica_of(int primary) const noexcept;
  bool replicate_one(Node& replica);
  bool move_one_key();
  void finish_migration();
  [[nodiscard]] bool gossip();
  void tell_all() noexcept;

  const NodeContext& context_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::array<int, kRegions> owner_{};  // the truth
  // One region moves at a time.
  int moving_ = kNobody;
  int from_ = kNobody;
  int to_ = kNobody;
  Nanos rests_until_ = 0;  // before the next key moves
};

}  // namespace kvferry::sim
