// How chunks leave the index: evicted when the policy and everybody's rights allow it, or removed.

#include "cache/index.hpp"

namespace kvferry::cache {

bool Index::evictable(const Entry& entry) const noexcept {
  return entry.state == State::kReady && entry.leases == 0 && entry.pins == 0 &&
         entry.children == 0 && (entry.flags & kHeld) == 0;
}

// After any change of what evictable() asks.
void Index::refile(std::uint32_t slot) {
  Entry& entry = entries_[slot];
  const bool listed = (entry.flags & kIdle) != 0;
  if (evictable(entry) == listed) return;
  entry.flags ^= kIdle;
  if (listed) {
    idle_.remove(slot);
  } else {
    idle_.push(slot);
  }
}

std::uint32_t Index::choose(std::size_t& held_max) {
  int passed = 0;
  while (idle_.size() > 0 && passed < kPassedMax) {
    const std::uint32_t slot = policy_->victim(stats_.writing, passed);
    if (slot == kNone) break;
    if (evictable(entries_[slot])) return slot;
    policy_->lift(slot);
    // Its parents cannot go either; left where they are, each would be the next to be passed over.
    std::size_t lifts_max = kPassedMax;
    lift_ancestors(slot, kNone, lifts_max);
    if ((entries_[slot].flags & kHeld) != 0 && held_max > 0) {
      --held_max;
    } else {
      ++passed;
    }
  }
  return idle_.oldest();
}

std::optional<ChunkHash> Index::evict_one(std::size_t& held_max) {
  const std::uint32_t slot = choose(held_max);
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
  if (entry.flags & kIdle) idle_.remove(slot);
  if (entry.leases > 0) --stats_.leased;
  if (entry.pins > 0) --stats_.pinned;
  --(entry.state == State::kReady ? stats_.ready : stats_.writing);
  if (changes_ != nullptr && entry.state == State::kReady) changes_->note(entry.hash, false);
  table_.erase(entry.hash.mixed(), slot);
  const std::uint32_t parent = entries_.parent_of(slot);
  if (pages_ != nullptr) pages_->give_back(entry.page);
  entries_.give_back(slot);
  if (parent != kNone) {
    --entries_[parent].children;
    refile(parent);
  }
}

void Index::evict(std::size_t count, std::vector<ChunkHash>& hashes) {
  std::size_t held_max = 0;
  for (; count > 0; --count) {
    const auto hash = evict_one(held_max);
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
