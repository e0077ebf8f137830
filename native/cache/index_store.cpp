// How chunks come into the index: reserved, then committed or aborted.

#include "cache/index.hpp"

namespace kvferry::cache {
namespace {

// Pages that come back may still be read by somebody. A call gives up after so many of them.
constexpr int kFruitlessMax = 8;

}  // namespace

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

}  // namespace kvferry::cache
