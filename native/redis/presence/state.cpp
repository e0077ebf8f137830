#include "redis/presence/state.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "codec/checksum.hpp"

namespace kvferry::redis {

PresenceState::PresenceState(std::string prefix, bool clustered, const PresenceLimits& limits,
                             const Seed& seed)
    : prefix_(std::move(prefix)),
      clustered_(clustered),
      limits_(limits),
      seed_(seed),
      server_of_(kSlotCount, kNobody) {}

std::uint64_t PresenceState::hash(std::string_view key) const noexcept {
  std::array<std::byte, sizeof(Seed) + kKeyBytesMax> text;
  std::memcpy(text.data(), seed_.data(), sizeof(Seed));
  std::memcpy(text.data() + sizeof(Seed), key.data(), key.size());
  const std::uint64_t hash = codec::xxh3_64(ByteView(text).first(sizeof(Seed) + key.size()));
  return hash == 0 ? 1 : hash;
}

// --- Callers ---

void PresenceState::look_up(std::span<const std::string_view> keys,
                            std::span<Presence> answers) const {
  constexpr std::size_t kAtOnce = 64;  // keys for which the lock is held
  struct Place {
    std::uint64_t hash;
    std::uint16_t slot;
  };
  std::array<Place, kAtOnce> places;
  for (std::size_t first = 0; first < keys.size(); first += kAtOnce) {
    const auto some = keys.subspan(first, std::min(kAtOnce, keys.size() - first));
    for (std::size_t i = 0; i < some.size(); ++i) {
      places[i] = ours(some[i]) ? Place{hash(some[i]), slot(some[i])} : Place{0, 0};
    }
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < some.size(); ++i) {
      const auto [hash, slot] = places[i];
      Presence& answer = answers[first + i] = Presence::kUnknown;
      const NodeId server = server_of_[slot];
      if (hash == 0 || server == kNobody || !nodes_[server]->trusted.contains(slot)) continue;
      if (changing_.contains(hash)) continue;
      answer = nodes_[server]->keys.contains(hash) ? Presence::kProbable : Presence::kAbsent;
    }
  }
}

bool PresenceState::wrote(std::string_view key) {
  if (!ours(key)) return false;
  const std::uint64_t hash = this->hash(key);
  const std::lock_guard lock(mutex_);
  return note(hash, key);
}

PresenceStats PresenceState::stats() const {
  const std::lock_guard lock(mutex_);
  PresenceStats stats = counters_;
  stats.keys = keys_;
  stats.changing = changing_.size();
  for (const auto& node : nodes_) {
    if (node == nullptr) continue;
    ++stats.nodes;
    if (!node->served.empty() && node->trusted == node->served) ++stats.nodes_synced;
    stats.memory_bytes += sizeof(Node) + node->keys.memory_bytes();
  }
  return stats;
}

// --- Nodes ---

PresenceState::NodeId PresenceState::join() {
  const std::lock_guard lock(mutex_);
  auto place = std::ranges::find_if(nodes_, [](const auto& node) { return node == nullptr; });
  if (place == nodes_.end()) place = nodes_.insert(place, nullptr);
  *place = std::make_unique<Node>();
  return static_cast<NodeId>(place - nodes_.begin());
}

void PresenceState::leave(NodeId node) {
  lost(node);
  const std::lock_guard lock(mutex_);
  nodes_[node].reset();
}

void PresenceState::lost(NodeId id) {
  const std::lock_guard lock(mutex_);
  Node& node = *nodes_[id];
  node.served = {};
  node.queue.clear();
  node.asked.clear();
  forget(node);
  settle_slots();
}

void PresenceState::serves(NodeId id, const SlotSet& slots) {
  const std::lock_guard lock(mutex_);
  Node& node = *nodes_[id];
  if (node.served == slots) return;
  node.served = slots;
  node.trusted &= slots;
  node.scanning &= slots;
  settle_slots();
}

void PresenceState::forget(Node& node) {
  if (!node.trusted.empty()) ++counters_.forgotten;
  keys_ -= node.keys.size();
  node.keys.clear();
  node.trusted = node.scanning = {};
}

void PresenceState::settle_slots() {
  SlotSet served;
  SlotSet disputed;
  covered_ = {};
  for (const auto& node : nodes_) {
    if (node == nullptr) continue;
    disputed |= served & node->served;
    served |= node->served;
    covered_ |= node->trusted | node->scanning;
  }
  std::ranges::fill(server_of_, kNobody);
  for (std::size_t id = 0; id < nodes_.size(); ++id) {
    if (nodes_[id] == nullptr) continue;
    (nodes_[id]->served - disputed).for_each([&](std::size_t slot) {
      server_of_[slot] = static_cast<NodeId>(id);
    });
  }
  std::erase_if(changing_,
                [&](const auto& entry) { return !covered_.contains(entry.second.slot); });
  for (auto& [hash, change] : changing_) {
    if (change.node != server_of_[change.slot]) place(hash, change);
  }
}

// --- Snapshots ---

bool PresenceState::wants_snapshot(NodeId id) const {
  const std::lock_guard lock(mutex_);
  const Node& node = *nodes_[id];
  return !(node.served - node.trusted - node.scanning).empty();
}

void PresenceState::begin_snapshot(NodeId id) {
  const std::lock_guard lock(mutex_);
  Node& node = *nodes_[id];
  node.overflowed = false;
  node.scanning = node.served - node.trusted;
  settle_slots();
}

void PresenceState::found(NodeId id, std::string_view key) {
  if (!ours(key)) return;
  const std::uint64_t hash = this->hash(key);
  const std::lock_guard lock(mutex_);
  // Whatever it was cut short by: what nobody answers for need not be held.
  if (Node& node = *nodes_[id]; !node.trusted.empty() || !node.scanning.empty()) hold(node, hash);
}

void PresenceState::end_snapshot(NodeId id) {
  const std::lock_guard lock(mutex_);
  Node& node = *nodes_[id];
  if (node.scanning.empty()) return;
  node.trusted |= std::exchange(node.scanning, SlotSet{});
  ++counters_.snapshots;
  settle_slots();
}

void PresenceState::hold(Node& node, std::uint64_t hash) {
  if (!node.keys.insert(hash)) return;
  if (++keys_ <= limits_.keys_max) return;
  node.overflowed = true;
  forget(node);
  settle_slots();
}

void PresenceState::drop(Node& node, std::uint64_t hash) {
  if (node.keys.erase(hash)) --keys_;
}

bool PresenceState::overflowed(NodeId id) const {
  const std::lock_guard lock(mutex_);
  return nodes_[id]->overflowed;
}

// --- Changes, and questions about them ---

void PresenceState::changed(NodeId id, std::string_view key) {
  if (!ours(key)) return;
  const std::uint64_t hash = this->hash(key);
  const std::lock_guard lock(mutex_);
  ++counters_.announced;
  // Of no use while it changes; and if another node serves its slot by now, this one lost it.
  drop(*nodes_[id], hash);
  note(hash, key);
}

void PresenceState::flushed(NodeId id) {
  const std::lock_guard lock(mutex_);
  forget(*nodes_[id]);
  settle_slots();
}

bool PresenceState::note(std::uint64_t hash, std::string_view key) {
  const std::uint16_t slot = this->slot(key);
  if (!covered_.contains(slot)) return false;
  const auto [entry, is_new] = changing_.try_emplace(hash);
  Change& change = entry->second;
  if (!is_new) {
    if (change.step == Step::kAsked) change.step = Step::kAskedTooEarly;
    return false;
  }
  change.key = key;
  change.slot = slot;
  place(hash, change);
  if (changing_.size() <= limits_.changing_max) return true;
  for (const auto& node : nodes_) {
    if (node != nullptr) forget(*node);
  }
  settle_slots();
  return true;
}

void PresenceState::place(std::uint64_t hash, Change& change) {
  change.node = server_of_[change.slot];
  change.ticket = 0;
  change.step = change.node == kNobody ? Step::kWaiting : Step::kQueued;
  if (change.node != kNobody) nodes_[change.node]->queue.push_back(hash);
}

std::optional<std::string> PresenceState::next_question(NodeId id) {
  const std::lock_guard lock(mutex_);
  Node& node = *nodes_[id];
  while (!node.queue.empty() && node.asked.size() < limits_.asked_max) {
    const std::uint64_t hash = node.queue.front();
    node.queue.pop_front();
    const auto entry = changing_.find(hash);
    if (entry == changing_.end()) continue;
    Change& change = entry->second;
    if (change.node != id || change.step != Step::kQueued) continue;
    change.step = Step::kAsked;
    change.ticket = next_ticket_++;
    node.asked.push_back({hash, change.ticket});
    ++counters_.asked;
    return change.key;
  }
  return std::nullopt;
}

void PresenceState::answered(NodeId id, bool exists) {
  const std::lock_guard lock(mutex_);
  Node& node = *nodes_[id];
  const auto [hash, ticket] = node.asked.front();
  node.asked.pop_front();
  const auto entry = changing_.find(hash);
  if (entry == changing_.end() || entry->second.ticket != ticket) return;
  if (entry->second.step == Step::kAskedTooEarly) return place(hash, entry->second);
  changing_.erase(entry);
  exists ? hold(node, hash) : drop(node, hash);
}

void PresenceState::redirected(NodeId id) {
  const std::lock_guard lock(mutex_);
  Node& node = *nodes_[id];
  const auto [hash, ticket] = node.asked.front();
  node.asked.pop_front();
  const auto entry = changing_.find(hash);
  if (entry == changing_.end() || entry->second.ticket != ticket) return;
  const std::uint16_t slot = entry->second.slot;
  node.served.remove(slot);
  node.trusted.remove(slot);
  node.scanning.remove(slot);
  settle_slots();
}

}  // namespace kvferry::redis
