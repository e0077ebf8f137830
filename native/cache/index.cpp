#include "cache/index.hpp"

#include <algorithm>
#include <functional>
#include <new>
#include <string>

namespace kvferry::cache {
namespace {

constexpr std::size_t kEvictedMin = 1024;  // remembered also by a small index
constexpr std::size_t kBlock = 64;         // hashes whose cache misses overlap

// Pages that come back may still be read by somebody. A call gives up after so many of them.
constexpr int kFruitlessMax = 8;

}  // namespace

Result<std::unique_ptr<Index>> Index::create(std::size_t capacity, std::string_view policy,
                                             bool leaf_first, PageSource* pages) {
  if (capacity < 1 || capacity > kCapacityMax) {
    return Error{Errc::kInvalidArgument, "the capacity is 1 to " + std::to_string(kCapacityMax) +
                                             " chunks, not " + std::to_string(capacity)};
  }
  try {
    std::unique_ptr<Index> index(new Index(capacity, leaf_first, pages));
    auto made = make_policy(policy, index->entries_);
    if (!made) return made.error();
    index->policy_ = std::move(*made);
    return index;
  } catch (const std::bad_alloc&) {
    return Error{Errc::kSystem,
                 "no memory for an index of " + std::to_string(capacity) + " chunks"};
  }
}

Index::Index(std::size_t capacity, bool leaf_first, PageSource* pages)
    : entries_(capacity),
      table_(capacity),
      evicted_(std::max(capacity, kEvictedMin)),
      pages_(pages),
      leaf_first_(leaf_first) {}

// --- Finding ------------------------------------------------------------------------------------

std::uint32_t Index::find(const ChunkHash& hash) const {
  return table_.find(hash.mixed(), [&](std::uint32_t slot) { return entries_[slot].hash == hash; });
}

// found_[begin:end], kNone for the absent. Cells and entries are asked for a block ahead.
void Index::find_all(Hashes hashes, std::size_t begin, std::size_t end) {
  std::uint64_t mixed[kBlock];
  while (begin < end) {
    const std::size_t count = std::min(kBlock, end - begin);
    for (std::size_t i = 0; i < count; ++i) {
      mixed[i] = hashes[begin + i].mixed();
      table_.prefetch(mixed[i]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t candidate = table_.find(mixed[i], [](std::uint32_t) { return true; });
      if (candidate != kNone) __builtin_prefetch(&entries_[candidate]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const ChunkHash hash = hashes[begin + i];
      found_[begin + i] =
          table_.find(mixed[i], [&](std::uint32_t slot) { return entries_[slot].hash == hash; });
    }
    begin += count;
  }
}

// Fills found_ at least up to the end of the run.
std::size_t Index::ready_run(Hashes hashes) {
  found_.resize(hashes.size());
  for (std::size_t begin = 0; begin < hashes.size(); begin += kBlock) {
    const std::size_t end = std::min(hashes.size(), begin + kBlock);
    find_all(hashes, begin, end);
    for (std::size_t i = begin; i < end; ++i) {
      if (found_[i] == kNone || entries_[found_[i]].state != State::kReady) return i;
    }
  }
  return hashes.size();
}

Known Index::known(const ChunkHash& hash) const {
  const std::uint32_t slot = find(hash);
  if (slot == kNone) return evicted_.remembers(hash) ? Known::kEvicted : Known::kAbsent;
  const Entry& entry = entries_[slot];
  if (entry.state == State::kWriting) return Known::kWriting;
  if (entry.pins > 0) return Known::kPinned;
  return entry.leases > 0 ? Known::kLeased : Known::kReady;
}

std::optional<ChunkRef> Index::ready(const ChunkHash& hash) const {
  const std::uint32_t slot = find(hash);
  if (slot == kNone || entries_[slot].state != State::kReady) return std::nullopt;
  return entries_.ref(slot);
}

// --- Using --------------------------------------------------------------------------------------

Prefix Index::lookup(Hashes hashes) {
  Prefix prefix{ready_run(hashes), 0};
  std::size_t at = prefix.ready;
  std::uint32_t slot = kNone;
  for (; at < hashes.size(); ++at) {
    slot = find(hashes[at]);
    if (slot == kNone || entries_[slot].state != State::kWriting) break;
  }
  prefix.writing = at - prefix.ready;
  if (at < hashes.size() && slot == kNone && evicted_.remembers(hashes[at])) {
    ++stats_.evicted_then_missed;
  }
  return prefix;
}

// Uses the ready ones of found_[:count], in the order of the mode.
void Index::touch_found(std::size_t count, Use how) {
  const auto use = [&](std::uint32_t slot) {
    if (slot != kNone && entries_[slot].state == State::kReady) policy_->touch(slot, how);
  };
  if (leaf_first_) {
    for (std::size_t i = count; i-- > 0;) use(found_[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) use(found_[i]);
  }
}

std::size_t Index::touch(Hashes hashes, Use how) {
  const std::size_t run = ready_run(hashes);
  touch_found(run, how);
  return run;
}

std::size_t Index::touch_any(Hashes hashes) {
  found_.resize(hashes.size());
  find_all(hashes, 0, hashes.size());
  touch_found(hashes.size(), Use::kHere);
  return static_cast<std::size_t>(std::ranges::count_if(found_, [&](std::uint32_t slot) {
    return slot != kNone && entries_[slot].state == State::kReady;
  }));
}

void Index::acquire(Hashes hashes, std::vector<ChunkRef>& refs, Use how) {
  std::size_t run = ready_run(hashes);
  for (std::size_t i = 0; i < run; ++i) {
    if (entries_[found_[i]].leases == kHoldersMax) run = i;
  }
  touch_found(run, how);
  for (std::size_t i = 0; i < run; ++i) {
    Entry& entry = entries_[found_[i]];
    // A request that names a chunk twice may reach the limit only now.
    if (entry.leases == kHoldersMax) break;
    if (entry.leases++ == 0) ++stats_.leased;
    refs.push_back(entries_.ref(found_[i]));
  }
}

void Index::hold(std::span<const ChunkRef> refs, std::vector<ChunkRef>& held) {
  for (const ChunkRef ref : refs) {
    if (!entries_.holds(ref)) continue;
    Entry& entry = entries_[ref.slot];
    if (entry.state != State::kReady || entry.leases == kHoldersMax) continue;
    if (entry.leases++ == 0) ++stats_.leased;
    held.push_back(ref);
  }
}

void Index::release(std::span<const ChunkRef> refs) {
  for (const ChunkRef ref : refs) {
    if (!entries_.holds(ref)) continue;
    if (--entries_[ref.slot].leases == 0) --stats_.leased;
    let_go(ref.slot);
  }
}

std::size_t Index::pin(Hashes hashes) {
  const std::size_t run = ready_run(hashes);
  std::size_t count = 0;
  for (; count < run; ++count) {
    Entry& entry = entries_[found_[count]];
    if (entry.pins == kHoldersMax) break;
    if (entry.pins++ == 0) ++stats_.pinned;
  }
  return count;
}

std::size_t Index::unpin(Hashes hashes) {
  const std::size_t run = ready_run(hashes);
  std::size_t count = 0;
  for (std::size_t i = 0; i < run; ++i) {
    Entry& entry = entries_[found_[i]];
    if (entry.pins == 0) continue;
    if (--entry.pins == 0) --stats_.pinned;
    let_go(found_[i]);
    ++count;
  }
  return count;
}

std::size_t Index::size_bytes() const {
  return entries_.size_bytes() + table_.size_bytes() + evicted_.size_bytes() +
         policy_->size_bytes();
}

// --- Storing -------------------------------------------------------------------------------------
// Chunks come into the index: reserved, then committed or aborted.

std::size_t Index::reserve(Hashes hashes, std::size_t first, std::vector<ChunkRef>& refs,
                           std::vector<std::uint32_t>& indices, std::size_t end) {
  found_.resize(hashes.size());
  find_all(hashes, 0, hashes.size());
  for (const std::uint32_t slot : found_) {
    if (slot == kNone) continue;
    entries_[slot].flags |= kHeld;
  }
  int fruitless = 0;
  const auto make_room = [&](std::uint64_t& page) {
    if (entries_.resident() == capacity() && !evict_one()) return false;
    if (pages_ == nullptr) return true;
    for (;;) {
      if (const auto taken = pages_->take()) {
        page = *taken;
        return true;
      }
      if (fruitless++ == kFruitlessMax || !evict_one()) return false;
    }
  };
  const std::size_t inserted_before = refs.size();
  std::size_t shed = 0;
  std::uint32_t parent = kNone;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    std::uint32_t slot = found_[i];
    // A request that names a chunk twice has inserted it by now.
    if (slot == kNone && refs.size() > inserted_before) slot = find(hashes[i]);
    if (slot != kNone) {
      if (leaf_first_ && parent != kNone && entries_.parent_of(slot) == kNone) {
        adopt(slot, parent, i);
      }
    } else if (i >= first && i < end) {
      const ChunkHash hash = hashes[i];
      std::uint64_t page = 0;
      std::uint8_t mark = 0;
      if (shed == 0) mark = policy_->prepare(hash);
      if (shed > 0 || !make_room(page)) {
        ++shed;
      } else {
        slot = insert(hash, leaf_first_ ? parent : kNone);
        entries_[slot].mark = mark;
        entries_[slot].page = page;
        refs.push_back(entries_.ref(slot));
        indices.push_back(static_cast<std::uint32_t>(i));
      }
    }
    parent = slot;
  }
  for (std::size_t i = found_.size(); i-- > 0;) {
    if (found_[i] == kNone) continue;
    entries_[found_[i]].flags &= static_cast<std::uint8_t>(~kHeld);
    let_go(found_[i]);
  }
  stats_.shed += shed;
  return shed;
}

std::uint32_t Index::insert(const ChunkHash& hash, std::uint32_t parent) {
  const std::uint32_t slot = entries_.take(hash);
  table_.insert(hash.mixed(), slot);
  ++stats_.writing;
  if (parent != kNone) {
    Entry& entry = entries_[slot];
    entry.parent = parent;
    entry.parent_use = entries_[parent].use;
    ++entries_[parent].children;
  }
  return slot;
}

// A root whose parent was stored after it gets that parent, unless that closes a circle: honest
// hashes cannot, others may. `depth` is how many ancestors the parent can have at most.
void Index::adopt(std::uint32_t slot, std::uint32_t parent, std::size_t depth) {
  std::uint32_t above = parent;
  for (std::size_t steps = 0; above != kNone; above = entries_.parent_of(above)) {
    if (above == slot || steps++ > depth) return;
  }
  entries_[slot].parent = parent;
  entries_[slot].parent_use = entries_[parent].use;
  ++entries_[parent].children;
}

std::size_t Index::commit(std::span<const ChunkRef> refs, std::span<const std::uint8_t> ok) {
  std::size_t count = 0;
  const auto settle = [&](std::size_t i) {
    if (!entries_.holds(refs[i]) || entries_[refs[i].slot].state != State::kWriting) return;
    const std::uint32_t slot = refs[i].slot;
    if (!ok.empty() && ok[i] == 0) {
      drop(slot);
      return;
    }
    make_ready(slot);
    ++count;
  };
  if (leaf_first_) {
    for (std::size_t i = refs.size(); i-- > 0;) settle(i);
  } else {
    for (std::size_t i = 0; i < refs.size(); ++i) settle(i);
  }
  return count;
}

// Requires: it is being written.
void Index::make_ready(std::uint32_t slot) {
  entries_[slot].state = State::kReady;
  --stats_.writing;
  ++stats_.ready;
  ++stats_.insertions;
  evicted_.forget(entries_[slot].hash);
  policy_->admit(slot);
  if (changes_ != nullptr) changes_->note(entries_[slot].hash, true);
}

void Index::abort(std::span<const ChunkRef> refs) {
  for (const ChunkRef ref : refs) {
    if (entries_.holds(ref) && entries_[ref.slot].state == State::kWriting) drop(ref.slot);
  }
}

// --- Leaving -------------------------------------------------------------------------------------
// Chunks leave: evicted when the policy and everybody's rights allow it, or removed.

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

// --- Over a restart ------------------------------------------------------------------------------
// Chunks are written down, and taken over by the index of another process.

// The ready chunks, the one that would go last in front. Each is in one queue of the policy, and
// all queues use the same links: so the youngest of each queue has nobody younger, whatever the
// policy.
std::vector<std::uint32_t> Index::by_age() const {
  std::vector<std::uint32_t> youngest;
  for (std::uint32_t slot = 0; slot < entries_.touched(); ++slot) {
    const Entry& entry = entries_[slot];
    if (entry.state == State::kReady && entry.order.younger == kNone) youngest.push_back(slot);
  }
  // Queues of chunks on trial have the lower marks.
  std::ranges::stable_sort(youngest, std::greater{},
                           [this](std::uint32_t slot) { return entries_[slot].mark; });
  std::vector<std::uint32_t> slots;
  slots.reserve(stats_.ready);
  for (std::uint32_t slot : youngest) {
    for (; slot != kNone; slot = entries_[slot].order.older) slots.push_back(slot);
  }
  return slots;
}

std::vector<Resident> Index::residents() const {
  std::vector<Resident> out;
  out.reserve(stats_.ready);
  std::vector<std::uint32_t> places(entries_.touched(), kNone);  // in `out`, by slot
  std::vector<std::uint32_t> branch;
  for (std::uint32_t slot : by_age()) {
    branch.clear();
    while (slot != kNone && places[slot] == kNone && entries_[slot].state == State::kReady) {
      branch.push_back(slot);
      slot = entries_.parent_of(slot);
    }
    std::uint32_t parent = slot == kNone ? kNone : places[slot];
    for (std::size_t i = branch.size(); i-- > 0;) {
      const Entry& entry = entries_[branch[i]];
      out.push_back({entry.hash, parent, entry.page});
      parent = places[branch[i]] = static_cast<std::uint32_t>(out.size() - 1);
    }
  }
  return out;
}

std::uint32_t Index::ready_from(std::uint32_t from, std::size_t count,
                                std::vector<ChunkHash>& hashes) const {
  const std::uint32_t touched = entries_.touched();
  for (; count > 0 && from < touched; ++from, --count) {
    const Entry& entry = entries_[from];
    if (entry.state == State::kReady) hashes.push_back(entry.hash);
  }
  return from < touched ? from : 0;
}

std::size_t Index::restore(std::span<const Resident> residents) {
  std::vector<std::uint32_t> slots(residents.size(), kNone);
  std::vector<std::uint32_t> inserted;
  for (std::size_t i = 0; i < residents.size(); ++i) {
    const auto& [hash, parent, page] = residents[i];
    if (page == 0 && pages_ != nullptr) continue;
    slots[i] = find(hash);
    if (slots[i] != kNone || entries_.resident() == capacity()) {
      if (pages_ != nullptr) pages_->give_back(page);
      continue;
    }
    const std::uint8_t mark = policy_->prepare(hash);
    slots[i] = insert(hash, leaf_first_ && parent < i ? slots[parent] : kNone);
    entries_[slots[i]].mark = mark;
    entries_[slots[i]].page = page;
    inserted.push_back(slots[i]);
  }
  for (std::size_t i = inserted.size(); i-- > 0;) make_ready(inserted[i]);
  return inserted.size();
}

}  // namespace kvferry::cache
