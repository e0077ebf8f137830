#include "cache/index.hpp"

#include <algorithm>
#include <new>
#include <string>

namespace kvferry::cache {
namespace {

constexpr std::size_t kEvictedMin = 1024;  // remembered also by a small index
constexpr std::size_t kBlock = 64;         // hashes whose cache misses overlap

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

}  // namespace kvferry::cache
