#include "redis/router.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "redis/cluster/redirect.hpp"

namespace kvferry::redis {
namespace {

constexpr int kRedirectsAtOnce = 3;  // more than these, and the cluster has not made up its mind
constexpr std::string_view kNoNode = "no node of the cluster serves the key's slot";
constexpr Nanos kParkTime = 20 * kMilli;

// A node that imports its first slots is in no map yet, and redirects name it all the same.
constexpr Nanos kGrace = 5 * kSecond;

std::string name_of(const net::Endpoint& endpoint, NodeRole role) {
  return endpoint.text() + (role == NodeRole::kReplica ? " (replica)" : "");
}

}  // namespace

Router::Router(const Config& config, LogSink& log, Dispatcher& dispatcher)
    : config_(config),
      log_(log),
      dispatcher_(dispatcher),
      unmapped_(config, config.endpoint, NodeRole::kPrimary, log, dispatcher) {
  if (config.topology != Topology::kStandalone) return;
  auto view = std::make_shared<View>();
  view->shards.push_back({node_at(config.endpoint, NodeRole::kPrimary, false), {}});
  view_ = std::move(view);
}

Outcome Router::submit(const std::shared_ptr<Batch>& batch) {
  const Error full{Errc::kCapacity, "too many commands are waiting; try again later"};
  const Lane lane = lane_of(batch->options().verb);
  const auto view = this->view();
  const bool one_node =
      view == nullptr || (view->slots.empty() && view->shards[0].replicas.empty());
  if (one_node) {
    Server& server = view == nullptr ? unmapped_ : *view->shards[0].primary;
    const std::size_t count = batch->sendable();
    if (!server.queue().push(batch)) return full;
    check_after_push(server);
    server.wake_for(lane, count);
    return Done{};
  }
  if (waiting() + batch->sendable() > config_.queued_commands_max) return full;
  std::vector<std::pair<Server*, std::vector<std::uint32_t>>> tiles;
  std::vector<std::uint32_t> unserved;
  const auto& commands = batch->commands();
  for (std::uint32_t index = 0; index < commands.size(); ++index) {
    if (commands[index].deferred) continue;
    Server* server = target(*view, *batch, commands[index]);
    if (server == nullptr) {
      unserved.push_back(index);
      continue;
    }
    auto tile = std::ranges::find(tiles, server, &decltype(tiles)::value_type::first);
    if (tile == tiles.end()) tile = tiles.insert(tiles.end(), {server, {}});
    tile->second.push_back(index);
  }
  for (auto& [server, indices] : tiles) {
    if (server->queue().push(batch, indices)) continue;
    for (const std::uint32_t index : indices) {
      server->queue().put_back({batch.get(), &batch->commands()[index]});
    }
  }
  for (const auto& [server, indices] : tiles) {
    check_after_push(*server);
    server->wake_for(lane, indices.size());
  }
  for (const std::uint32_t index : unserved) {
    unmapped_.settle({batch.get(), &batch->commands()[index]}, Status::kUnavailable, kNoNode);
  }
  if (!unserved.empty()) dispatcher_.suspect();
  return Done{};
}

// The checks come after the push, so that a breaker that opens or a node that leaves in between
// misses nothing.
void Router::check_after_push(Server& server) {
  if (server.retired()) return server.retire();
  if (server.available()) return;
  dispatcher_.suspect();
  server.refuse_all(Status::kUnavailable, server.down_error());
}

void Router::route(Work work) {
  const auto view = this->view();
  if (view == nullptr) return enqueue(unmapped_, work);
  Server* server = target(*view, *work.batch, *work.command);
  if (server != nullptr) return enqueue(*server, work);
  dispatcher_.suspect();
  unmapped_.settle(work, Status::kUnavailable, kNoNode);
}

void Router::enqueue(Server& server, Work work) {
  const Lane lane = lane_of(work.batch->options().verb);
  server.queue().put_back(work);
  check_after_push(server);
  server.wake_for(lane, 1);
}

Server* Router::target(const View& view, const Batch& batch, const Command& command) noexcept {
  if (!batch.node.empty() && !view.slots.empty()) {
    for (const Shard& shard : view.shards) {
      if (shard.primary->endpoint().text() == batch.node) return shard.primary.get();
    }
    return nullptr;
  }
  std::size_t index = 0;
  if (!view.slots.empty()) {
    index = view.slots[key_slot(batch.key(command))];
    if (index == SlotMap::kNoShard) return nullptr;
  }
  const Shard& shard = view.shards[index];
  const Verb verb = batch.options().verb;
  const bool reads = verb == Verb::kGet || verb == Verb::kExists;
  if (!reads || command.primary_only || shard.replicas.empty()) return shard.primary.get();
  return &reader(shard);
}

// In turn those that are up and, if that is asked for, in our zone.
Server& Router::reader(const Shard& shard) noexcept {
  if (config_.read_from == ReadFrom::kZone && shard.primary->in_zone() &&
      shard.primary->available()) {
    return *shard.primary;
  }
  const std::size_t turn = turn_.fetch_add(1, std::memory_order_relaxed);
  Server* found = nullptr;
  for (std::size_t index = 0; index < shard.replicas.size(); ++index) {
    Server& replica = *shard.replicas[(turn + index) % shard.replicas.size()];
    if (!replica.available() || replica.connections_up() == 0) continue;
    if (config_.read_from == ReadFrom::kReplica || replica.in_zone()) return replica;
    if (found == nullptr) found = &replica;
  }
  return found != nullptr ? *found : *shard.primary;
}

void Router::redirected(AskedNode& from, Work work, std::string_view answer, Nanos now) {
  Command& command = *work.command;
  if (config_.topology != Topology::kCluster) {
    return from.settle(work, Status::kServerError,
                       "the server belongs to a cluster; use a redis+cluster:// address");
  }
  dispatcher_.suspect();
  if (++command.redirects > kRedirectsMax) {
    return from.settle(work, Status::kUnavailable, "the cluster redirects without end");
  }
  const Nanos later = now + kParkTime * command.redirects;
  if (answer.starts_with("TRYAGAIN")) return park(work, later);
  const auto redirect = parse_redirect(answer, from.endpoint().host);
  if (!redirect) return from.settle(work, Status::kServerError, "a redirect that makes no sense");
  if (redirect->endpoint.host.empty()) return park(work, later);
  const std::uint64_t before = generation();
  const auto to = node_at(redirect->endpoint, NodeRole::kPrimary, true);
  if (to == nullptr) return park(work, later);
  if (generation() != before) dispatcher_.wake_workers();  // nobody has connections to it yet
  command.primary_only = true;
  if (redirect->kind == RedirectKind::kAsk) {
    command.asking = true;
    return enqueue(*to, work);
  }
  move_slot(redirect->slot, to);
  if (command.redirects > kRedirectsAtOnce) return park(work, later);
  enqueue(*to, work);
}

void Router::park(Work work, Nanos until) {
  {
    const std::lock_guard lock(mutex_);
    parked_.push_back({until, work});
  }
  dispatcher_.suspect();       // its thread releases it
  dispatcher_.wake_workers();  // as does the one that sweeps, should that thread be busy
}

Nanos Router::release_parked(Nanos now) {
  std::vector<Work> due;
  Nanos next = kNever;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(parked_, [&](const Parked& parked) {
      const Batch& batch = *parked.work.batch;
      if (now >= parked.until || batch.cancelled() || batch.options().deadline <= now) {
        due.push_back(parked.work);
        return true;
      }
      next = std::min({next, parked.until, batch.options().deadline});
      return false;
    });
  }
  for (const Work& work : due) route(work);
  return next;
}

void Router::sweep(Nanos now) {
  release_parked(now);  // the control thread may be waiting for an answer
  unmapped_.sweep(now);
  for (const Node& node : nodes()) node.server->sweep(now);
}

void Router::refuse_all(Status status, Reason why) {
  std::vector<Parked> parked;
  {
    const std::lock_guard lock(mutex_);
    parked = std::exchange(parked_, {});
  }
  for (const Parked& each : parked) unmapped_.settle(each.work, status, why);
  unmapped_.refuse_all(status, why);
  for (const Node& node : nodes()) node.server->refuse_all(status, why);
}

void Router::fail_for_good(std::string_view why) {
  unmapped_.fail_for_good(why);
  for (const Node& node : nodes()) node.server->fail_for_good(why);
}

std::size_t Router::waiting() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = unmapped_.waiting() + parked_.size();
  for (const auto& [name, node] : nodes_) count += node.server->waiting();
  return count;
}

bool Router::available() const {
  if (view() == nullptr) return unmapped_.available();
  return std::ranges::any_of(nodes(), [](const Node& node) { return node.server->available(); });
}

std::string Router::down_reason() const {
  if (view() == nullptr) return unmapped_.down_error().context;
  for (const Node& node : nodes()) {
    if (!node.server->available()) return node.server->down_error().context;
  }
  return "no node serves the key's slot";
}

std::vector<Router::Node> Router::nodes() const {
  const std::lock_guard lock(mutex_);
  std::vector<Node> all;
  all.reserve(nodes_.size());
  for (const auto& [name, node] : nodes_) all.push_back(node);
  return all;
}

std::vector<std::string> Router::primaries() const {
  const auto view = this->view();
  if (view == nullptr) return {};
  std::vector<bool> serves(view->shards.size(), view->slots.empty());
  for (const std::uint16_t shard : view->slots) {
    if (shard != SlotMap::kNoShard) serves[shard] = true;
  }
  std::vector<std::string> names;
  for (std::size_t index = 0; index < serves.size(); ++index) {
    if (serves[index]) names.push_back(view->shards[index].primary->endpoint().text());
  }
  return names;
}

std::shared_ptr<const Router::View> Router::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

// --- Changes of the map ---
// Nodes come, go, and hand slots to each other.

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
