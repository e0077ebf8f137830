// Router, the half that changes the map: nodes come, go, and hand slots to each other.

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "redis/router.hpp"

namespace kvferry::redis {
namespace {

// A node that imports its first slots is in no map yet, and redirects name it all the same.
constexpr Nanos kGrace = 5 * kSecond;

std::string name_of(const net::Endpoint& endpoint, NodeRole role) {
  return endpoint.text() + (role == NodeRole::kReplica ? " (replica)" : "");
}

}  // namespace

Outcome Router::apply(const SlotMap& map, Nanos now) {
  const bool reads_replicas = config_.read_from != ReadFrom::kPrimary;
  std::size_t named = map.shards().size();
  for (const redis::Shard& shard : map.shards()) {
    if (reads_replicas) named += shard.replicas.size();
  }
  if (named > config_.nodes_max) {
    return Error{Errc::kCapacity, "the cluster has " + std::to_string(named) +
                                      " nodes, which is more than nodes_max"};
  }
  auto next = std::make_shared<View>();
  next->named = named;
  const std::uint64_t before = generation();
  std::vector<std::shared_ptr<Server>> gone;
  std::set<const Server*> kept;
  bool is_news = false;
  const auto keep = [&](const redis::Node& node, NodeRole role) {
    auto server = node_at(node.endpoint, role, false);
    if (!node.zone.empty()) server->note_zone(node.zone);
    kept.insert(server.get());
    return server;
  };
  for (const redis::Shard& shard : map.shards()) {
    Shard entry{.primary = keep(shard.primary, NodeRole::kPrimary), .replicas = {}};
    for (const redis::Node& replica : shard.replicas) {
      if (!reads_replicas) break;
      entry.replicas.push_back(keep(replica, NodeRole::kReplica));
    }
    next->shards.push_back(std::move(entry));
  }
  if (config_.topology == Topology::kCluster) {
    next->slots.resize(kSlotCount);
    for (std::size_t slot = 0; slot < kSlotCount; ++slot) {
      const std::uint16_t shard = map.shard_of(slot);
      check(shard == SlotMap::kNoShard || shard < next->shards.size(),
            "a map gives slots to shards that it names");
      next->slots[slot] = shard;
    }
  }
  {
    const std::lock_guard lock(mutex_);
    is_news = view_ == nullptr || *view_ != *next;
    view_ = std::move(next);
    // A master that Sentinels have replaced must not see another write.
    const Nanos grace = config_.topology == Topology::kSentinel ? 0 : kGrace;
    for (auto entry = nodes_.begin(); entry != nodes_.end();) {
      Node& node = entry->second;
      const bool stays = kept.contains(node.server.get());
      node.absent_since = stays ? kNever : std::min(node.absent_since, now);
      if (stays || now - node.absent_since < grace) {
        ++entry;
        continue;
      }
      gone.push_back(node.server);
      entry = nodes_.erase(entry);
    }
    if (!gone.empty()) ++generation_;
  }
  for (const auto& server : gone) {
    log_.push(LogLevel::kInfo, server->endpoint().text() + " left the topology");
    keep_counters(*server);
    server->retire();
  }
  if (!unmapped_.retired()) unmapped_.retire();  // from now on there is somewhere to go
  // A map is asked for every few seconds, and mostly says what the one before it said.
  if (is_news || generation() != before) dispatcher_.wake_workers();
  return Done{};
}

void Router::no_topology(const Error& error) {
  if (view() == nullptr) unmapped_.on_dial_failed(error);
}

std::shared_ptr<Server> Router::node_at(const net::Endpoint& endpoint, NodeRole role,
                                        bool by_redirect) {
  const std::lock_guard lock(mutex_);
  const std::string name = name_of(endpoint, role);
  if (const auto found = nodes_.find(name); found != nodes_.end()) {
    found->second.absent_since = kNever;
    return found->second.server;
  }
  if (by_redirect) {
    // A map's word is checked as a whole; a redirect's is not, and each costs sockets.
    const std::size_t known = view_ == nullptr ? 0 : view_->named;
    if (nodes_.size() >= known + kUnmappedNodesMax) return nullptr;
  }
  auto server = std::make_shared<Server>(config_, endpoint, role, log_, dispatcher_);
  nodes_.emplace(name, Node{.ordinal = created_++, .server = server});
  ++generation_;
  return server;
}

void Router::move_slot(std::uint16_t slot, const std::shared_ptr<Server>& to) {
  const std::lock_guard lock(mutex_);
  if (view_ == nullptr || view_->slots.empty() || to->retired()) return;
  auto next = std::make_shared<View>(*view_);
  auto shard = std::ranges::find(next->shards, to, &Shard::primary);
  if (shard == next->shards.end()) shard = next->shards.insert(shard, Shard{to, {}});
  next->slots[slot] = static_cast<std::uint16_t>(shard - next->shards.begin());
  view_ = std::move(next);
}

void Router::keep_counters(Server& server) {
  const Stats& stats = server.stats();
  const auto add = [](std::atomic<std::uint64_t>& sum, const std::atomic<std::uint64_t>& part) {
    sum.fetch_add(part.load(std::memory_order_relaxed), std::memory_order_relaxed);
  };
  add(former_.bytes_received, stats.bytes_received);
  add(former_.content_received, stats.content_received);
  add(former_.bytes_sent, stats.bytes_sent);
  add(former_.receives, stats.receives);
  add(former_.sends, stats.sends);
  add(former_.commands_settled, stats.commands_settled);
  add(former_.commands_retried, stats.commands_retried);
  add(former_.connections_opened, stats.connections_opened);
  add(former_.connections_lost, stats.connections_lost);
  add(former_.dials_failed, stats.dials_failed);
  add(former_.values_corrupt, stats.values_corrupt);
  for (std::size_t fault = 0; fault < stats.refused.size(); ++fault) {
    add(former_.refused[fault], stats.refused[fault]);
  }
}

}  // namespace kvferry::redis
