// How chunks leave the index: evicted when the policy and everybody's rights allow it, or removed.

#include "cache/index.hpp"

namespace kvferry::cache {

// After a lease, a pin or a request has let go of it. Whose turn was meanwhile is as young as that.
void Index::let_go(std::uint32_t slot) {
  if ((entries_[slot].flags & kAside) != 0 && evictable(entries_[slot])) policy_->lift(slot);
}

std::optional<ChunkHash> Index::evict_one() {
  const std::uint32_t slot = policy_->victim(stats_.writing);
  if (slot == kNone) return std::nullopt;
  const ChunkHash hash = entries_[slot].hash;
  evicted_.remember(hash);
  policy_->evicted(slot);
  ++stats_.evictions;
  drop(slot);
  return hash;
}

// Requires: the policy does not hold it any more.
void Index::drop(std::uint32_t slot) {
  Entry& entry = entries_[slot];
  if (entry.leases > 0) --stats_.leased;
  if (entry.pins > 0) --stats_.pinned;
  --(entry.state == State::kReady ? stats_.ready : stats_.writing);
  if (changes_ != nullptr && entry.state == State::kReady) changes_->note(entry.hash, false);
  table_.erase(entry.hash.mixed(), slot);
  const std::uint32_t parent = entries_.parent_of(slot);
  if (pages_ != nullptr) pages_->give_back(entry.page);
  entries_.give_back(slot);
  if (parent != kNone) {
    Entry& above = entries_[parent];
    --above.children;
    if ((above.flags & kAside) != 0 && evictable(above)) policy_->bring_back(parent);
  }
}

void Index::evict(std::size_t count, std::vector<ChunkHash>& hashes) {
  for (; count > 0; --count) {
    const auto hash = evict_one();
    if (!hash) return;
    hashes.push_back(*hash);
  }
}

std::size_t Index::remove(Hashes hashes) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::uint32_t slot = find(hashes[i]);
    if (slot == kNone) continue;
    if (entries_[slot].state == State::kReady) policy_->removed(slot);
    drop(slot);
    ++count;
  }
  return count;
}

std::size_t Index::clear() {
  const std::size_t count = entries_.resident();
  for (std::uint32_t slot = 0; slot < entries_.touched(); ++slot) {
    if (entries_[slot].state == State::kFree) continue;
    if (entries_[slot].state == State::kReady) policy_->removed(slot);
    drop(slot);
  }
  return count;
}

}  // namespace kvferry::cache
