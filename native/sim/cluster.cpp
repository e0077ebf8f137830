#include "sim/cluster.hpp"

#include <algorithm>

#include "sim/addresses.hpp"

namespace kvferry::sim {

Cluster::Cluster(const NodeContext& context) : context_(context) {
  const Plan& plan = context.plan;
  const auto primaries = static_cast<int>(plan.primaries);
  const int count = plan.replicas ? 2 * primaries : primaries;
  for (int id = 0; id < count; ++id) {
    Node& node = *nodes_.emplace_back(std::make_unique<Node>(context, id));
    if (id >= primaries) node.primary = id - primaries;
    node.migrating.fill(kNobody);
    node.importing.fill(kNobody);
  }
  for (std::size_t region = 0; region < kRegions; ++region) {
    owner_[region] = static_cast<int>(region % plan.primaries);
  }
  tell_all();
}

void Cluster::tell_all() noexcept {
  for (const auto& node : nodes_) node->owner = owner_;
}

Network::Welcome Cluster::welcome(std::size_t node) const noexcept {
  switch (nodes_[node]->health) {
    case Node::Health::kUp:
      return Network::Welcome::kAccepts;
    case Node::Health::kDown:
      return Network::Welcome::kRefuses;
    case Node::Health::kSilent:
      break;
  }
  return Network::Welcome::kSilent;
}

bool Cluster::serve(Network& network) {
  const std::size_t count = network.size();
  const std::size_t start = count == 0 ? 0 : context_.random.below(count);
  for (std::size_t offset = 0; offset < count; ++offset) {
    Wire& wire = network.wire((start + offset) % count);
    if (!wire.node_holds || wire.up.here().empty()) continue;
    Node& node = *nodes_[wire.node];
    if (node.health != Node::Health::kUp || context_.journal.now() < node.frozen_until) continue;
    if (node.serve(wire)) return true;
    // The client is gone and the rest of the command with it.
    if (!wire.client_holds && wire.up.travelling() == 0) wire.node_holds = false;
  }
  return false;
}

Nanos Cluster::next() const noexcept {
  const Nanos now = context_.journal.now();
  Nanos earliest = rests_until_ > now && moving_ != kNobody ? rests_until_ : kNever;
  for (const auto& node : nodes_) {
    if (node->frozen_until > now) earliest = std::min(earliest, node->frozen_until);
  }
  return earliest;
}

bool Cluster::converse() {
  if (nodes_.size() == 1) return false;
  bool spoke = false;
  for (const auto& node : nodes_) {
    if (node->is_replica() && replicate_one(*node)) {
      spoke = true;
      break;
    }
  }
  if (gossip()) spoke = true;
  if (moving_ != kNobody && context_.journal.now() >= rests_until_) {
    if (!move_one_key()) finish_migration();
    spoke = true;
  }
  return spoke;
}

bool Cluster::replicate_one(Node& replica) {
  Node& primary = *nodes_[static_cast<std::size_t>(replica.primary)];
  if (primary.health != Node::Health::kUp || replica.health != Node::Health::kUp) return false;
  if (replica.replicated >= primary.log.size()) return false;
  const std::uint8_t entry = primary.log[replica.replicated++];
  replica.table[entry] = primary.table[entry];
  return true;
}

void Cluster::replicate_all() {
  for (const auto& node : nodes_) {
    while (node->is_replica() && replicate_one(*node)) {
    }
  }
}

bool Cluster::gossip() {
  const std::size_t index = context_.random.below(nodes_.size());
  Node& node = *nodes_[index];
  if (node.health != Node::Health::kUp || node.owner == owner_) return false;
  node.owner = owner_;
  context_.journal.note("gossip reaches", static_cast<std::int64_t>(index));
  return true;
}

int Cluster::replica_of(int primary) const noexcept {
  for (std::size_t id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id]->primary == primary) return static_cast<int>(id);
  }
  return kNobody;
}

Node* Cluster::pick_up() noexcept {
  const std::size_t start = context_.random.below(nodes_.size());
  for (std::size_t offset = 0; offset < nodes_.size(); ++offset) {
    Node& node = *nodes_[(start + offset) % nodes_.size()];
    if (node.health == Node::Health::kUp) return &node;
  }
  return nullptr;
}

Result<redis::SlotMap> Cluster::map() {
  const auto shard_of = [&](int id) {
    redis::SlotRange range;
    range.primary.endpoint = endpoint_of(id);
    if (const int replica = replica_of(id); replica != kNobody && id != kNobody) {
      range.replicas.push_back({endpoint_of(replica), {}});
    }
    return range;
  };
  const Node* witness = pick_up();
  if (witness == nullptr) return Error{Errc::kConnect, "no node answers"};
  const bool sentinel = context_.plan.topology == redis::Topology::kSentinel;
  const std::array<int, kRegions>& owner = sentinel ? owner_ : witness->owner;
  std::vector<redis::SlotRange> ranges;
  for (std::size_t region = 0; region < kRegions; ++region) {
    redis::SlotRange range = shard_of(owner[region]);
    range.first = static_cast<std::int64_t>(region * kSlotsPerRegion);
    range.last = range.first + static_cast<std::int64_t>(kSlotsPerRegion) - 1;
    ranges.push_back(std::move(range));
  }
  return redis::SlotMap::build(std::move(ranges));
}

void Cluster::kill(Network& network, std::size_t index, bool silently) {
  nodes_[index]->health = silently ? Node::Health::kSilent : Node::Health::kDown;
  network.drop_node(index, silently);
}

void Cluster::restart(std::size_t index, bool keeps_data) {
  Node& node = *nodes_[index];
  if (node.health == Node::Health::kUp) return;
  node.health = Node::Health::kUp;
  node.frozen_until = 0;
  if (!keeps_data && !node.is_replica()) {
    node.forget_all();
    for (std::size_t entry = 0; entry < kEntries; ++entry) {
      node.log.push_back(static_cast<std::uint8_t>(entry));
    }
  }
  context_.journal.note("restart", static_cast<std::int64_t>(index), keeps_data ? 1 : 0);
}

bool Cluster::promote(std::size_t index) {
  const auto old_id = static_cast<int>(index);
  const int new_id = replica_of(old_id);
  if (new_id == kNobody || moving_ != kNobody || nodes_[index]->is_replica()) return false;
  Node& old_primary = *nodes_[index];
  Node& new_primary = *nodes_[static_cast<std::size_t>(new_id)];
  if (new_primary.health != Node::Health::kUp) return false;
  context_.journal.trouble("promote", new_id, old_id);
  new_primary.primary = kNobody;
  std::ranges::replace(owner_, old_id, new_id);
  new_primary.owner = owner_;
  // When it is back it hears of that first, and takes a copy.
  old_primary.primary = new_id;
  old_primary.owner = owner_;
  old_primary.table = new_primary.table;
  old_primary.replicated = new_primary.log.size();
  return true;
}

bool Cluster::start_migration() {
  if (moving_ != kNobody) return false;
  const std::size_t region = context_.random.below(kRegions);
  const int from = owner_[region];
  int to = static_cast<int>(context_.random.below(nodes_.size()));
  if (to == from || nodes_[static_cast<std::size_t>(to)]->is_replica()) return false;
  moving_ = static_cast<int>(region);
  from_ = from;
  to_ = to;
  nodes_[static_cast<std::size_t>(from)]->migrating[region] = to;
  nodes_[static_cast<std::size_t>(to)]->importing[region] = from;
  // Some last longer than anybody may be sent to and fro.
  const Nanos rest = context_.random.one_in(2) ? 5 * kSecond : 2 * kMilli;
  rests_until_ = context_.journal.now() + context_.random.between(0, rest);
  context_.journal.note("migration", from, to);
  return true;
}

bool Cluster::move_one_key() {
  const auto region = static_cast<std::size_t>(moving_);
  Node& from = *nodes_[static_cast<std::size_t>(from_)];
  Node& to = *nodes_[static_cast<std::size_t>(to_)];
  rests_until_ = context_.journal.now() + context_.random.between(1, 3 * kMilli);
  if (from.health != Node::Health::kUp || to.health != Node::Health::kUp) return true;
  for (std::size_t entry = 0; entry < kEntries; ++entry) {
    if (region_of(entry) != region || from.find(entry) == nullptr) continue;
    to.table[entry] = from.table[entry];
    from.table[entry].present = false;
    from.log.push_back(static_cast<std::uint8_t>(entry));
    to.log.push_back(static_cast<std::uint8_t>(entry));
    context_.journal.note("key moved", static_cast<std::int64_t>(entry), to_);
    return true;
  }
  return false;
}

void Cluster::finish_migration() {
  const auto region = static_cast<std::size_t>(moving_);
  Node& from = *nodes_[static_cast<std::size_t>(from_)];
  Node& to = *nodes_[static_cast<std::size_t>(to_)];
  owner_[region] = to_;
  from.owner[region] = to.owner[region] = to_;
  from.migrating[region] = kNobody;
  to.importing[region] = kNobody;
  moving_ = kNobody;
  context_.journal.note("migration done", from_, to_);
}

void Cluster::heal() {
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    restart(index, true);
    Node& node = *nodes_[index];
    node.loading_until = node.full_until = node.undecided_until = node.frozen_until = 0;
  }
  while (moving_ != kNobody) {
    if (!move_one_key()) finish_migration();
  }
  tell_all();
  replicate_all();
}

}  // namespace kvferry::sim
