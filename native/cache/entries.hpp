#pragma once
// Entries: the places of an index, one cache line each; a chunk keeps its slot as long as it stays.
//
// A chunk's parent is the chunk in front of it in the prompt. The link is a slot with the number
// of its use, so a parent that left without its children leaves them as roots and not as children
// of a stranger.

#include <cstddef>
#include <cstdint>

#include "cache/hashes.hpp"
#include "cache/slot_list.hpp"
#include "cache/zeroed.hpp"

namespace kvferry::cache {

enum class State : std::uint8_t { kFree, kWriting, kReady };

// Flags of an entry.
inline constexpr std::uint8_t kHeld = 1;   // named by the request at hand
inline constexpr std::uint8_t kAside = 2;  // set aside by the policy when it could not go

struct Entry {
  ChunkHash hash;
  std::uint64_t page;    // opaque; 0 without pages
  std::uint32_t use;     // counts the chunks that were here; 0 only before the first
  std::uint32_t parent;  // a slot, or kNone; valid while `parent_use` is its use
  std::uint32_t parent_use;
  std::uint32_t children;  // resident chunks whose parent this is
  std::uint16_t leases;
  std::uint16_t pins;
  State state;
  std::uint8_t flags;   // see above
  std::uint8_t mark;    // of the policy: what prepare() said, then which queue it is in
  std::uint8_t uses;    // of the policy
  Links order;          // of the policy; `older` also chains the free slots
  std::uint64_t place;  // of the policy
};
static_assert(sizeof(Entry) == 64);

// Whether nobody needs it: no request, no holder, no chunk behind it.
inline bool evictable(const Entry& entry) noexcept {
  return entry.state == State::kReady && entry.leases == 0 && entry.pins == 0 &&
         entry.children == 0 && (entry.flags & kHeld) == 0;
}

// One stay of a chunk; stale when the chunk has left.
struct ChunkRef {
  std::uint32_t slot = kNone;
  std::uint32_t use = 0;

  // One number for language borders, never 0 for a chunk that was there.
  [[nodiscard]] std::uint64_t packed() const noexcept { return std::uint64_t{use} << 32 | slot; }
};

class Entries {
 public:
  // Requires: 1 <= capacity < 2^32 - 1.
  explicit Entries(std::size_t capacity) : entries_(capacity) {}

  Entry& operator[](std::uint32_t slot) noexcept { return entries_[slot]; }
  const Entry& operator[](std::uint32_t slot) const noexcept { return entries_[slot]; }
  [[nodiscard]] Zeroed<Entry>& all() noexcept { return entries_; }

  [[nodiscard]] std::size_t capacity() const noexcept { return entries_.size(); }
  [[nodiscard]] std::size_t resident() const noexcept { return resident_; }
  // Slots from here on were never used.
  [[nodiscard]] std::uint32_t touched() const noexcept { return touched_; }

  // A slot for a new chunk: writing, without relatives. Requires: resident() < capacity().
  std::uint32_t take(const ChunkHash& hash) noexcept {
    std::uint32_t slot = free_;
    if (slot == kNone) {
      slot = touched_++;
    } else {
      free_ = entries_[slot].order.older;
    }
    ++resident_;
    Entry& entry = entries_[slot];
    const std::uint32_t use = entry.use + 1 != 0 ? entry.use + 1 : 1;
    entry = Entry{};
    entry.hash = hash;
    entry.use = use;
    entry.parent = kNone;
    entry.state = State::kWriting;
    return slot;
  }

  void give_back(std::uint32_t slot) noexcept {
    entries_[slot].state = State::kFree;
    entries_[slot].order.older = free_;
    free_ = slot;
    --resident_;
  }

  // The parent if it is resident, or kNone.
  [[nodiscard]] std::uint32_t parent_of(std::uint32_t slot) const noexcept {
    const Entry& entry = entries_[slot];
    if (entry.parent == kNone) return kNone;
    const Entry& parent = entries_[entry.parent];
    return parent.use == entry.parent_use && parent.state != State::kFree ? entry.parent : kNone;
  }

  [[nodiscard]] ChunkRef ref(std::uint32_t slot) const noexcept {
    return {slot, entries_[slot].use};
  }
  [[nodiscard]] bool holds(ChunkRef ref) const noexcept {
    return ref.slot < touched_ && entries_[ref.slot].use == ref.use &&
           entries_[ref.slot].state != State::kFree;
  }

  [[nodiscard]] std::size_t size_bytes() const noexcept { return entries_.size_bytes(); }

 private:
  Zeroed<Entry> entries_;
  std::uint32_t free_ = kNone;
  std::uint32_t touched_ = 0;
  std::size_t resident_ = 0;
};

}  // namespace kvferry::cache
