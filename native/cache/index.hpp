#pragma once
// Index: which chunks are resident, which may be evicted, who comes first.
//
// A machine: no clock, no lock, no socket; memory is fixed at construction. Requests are lists of
// hashes, root first, and each call is for a whole one. Pages are numbers from a PageSource.
//
// States: a chunk is writing from reserve() to commit(), then ready. Only ready chunks without
//   lease and pin are evicted, and leaf-first only those without resident children. remove() and
//   clear() take any chunk; references to it are stale from then on, and say so.
// Leaf-first: a chunk whose turn comes while others follow it is set aside, and is the next to go
//   when the last of them has gone. So it does not matter in which order the chunks of a prefix are
//   used; that a request uses them from the last to the first only makes it rare. An eviction costs
//   O(1) amortised, and fails only when nothing can be evicted. See OrderList.
// Threads: one at a time. Lifetime: `pages` outlives the index.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "cache/change_log.hpp"
#include "cache/entries.hpp"
#include "cache/evicted_memory.hpp"
#include "cache/policy.hpp"
#include "cache/slot_table.hpp"

namespace kvferry::cache {

// Where pages come from and go to. Called from within calls of the index.
class PageSource {
 public:
  virtual ~PageSource() = default;
  virtual std::optional<std::uint64_t> take() = 0;
  virtual void give_back(std::uint64_t page) noexcept = 0;
};

// What is known of a chunk; crosses into Python as one byte, so the numbers are fixed.
enum class Known : std::uint8_t {
  kAbsent = 0,
  kEvicted = 1,  // absent, and remembered
  kWriting = 2,
  kReady = 3,
  kLeased = 4,
  kPinned = 5,  // leased or not
};

struct IndexStats {
  std::uint64_t ready = 0, writing = 0, leased = 0, pinned = 0;  // chunks, now
  std::uint64_t insertions = 0, evictions = 0, evicted_then_missed = 0, shed = 0;
};

struct Prefix {
  std::size_t ready = 0;    // the leading ready chunks
  std::size_t writing = 0;  // those right behind them that are being written
};

// A ready chunk as it is written down for another process.
struct Resident {
  ChunkHash hash;
  std::uint32_t parent = kNone;  // which one of the same list, or kNone
  std::uint64_t page = 0;
};

class Index {
 public:
  static constexpr std::size_t kCapacityMax = std::size_t{1} << 31;
  static constexpr std::uint16_t kHoldersMax = UINT16_MAX;  // leases, and pins, of one chunk

  // Fails with: kInvalidArgument for capacity or policy; kSystem when there is no memory.
  static Result<std::unique_ptr<Index>> create(std::size_t capacity, std::string_view policy,
                                               bool leaf_first, PageSource* pages = nullptr);
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  // Counts a miss of an evicted chunk at the first hole.
  Prefix lookup(Hashes hashes);
  // The leading ready run, used again.
  std::size_t touch(Hashes hashes, Use how = Use::kHere);
  // Every ready chunk, wherever in the request, used again; their number.
  std::size_t touch_any(Hashes hashes);
  // touch(), and none of the run can be evicted until release(). Appends to `refs`. The run ends
  // before a chunk that has kHoldersMax leases.
  void acquire(Hashes hashes, std::vector<ChunkRef>& refs, Use how = Use::kHere);
  // The same for these chunks, as far as they are there and ready. Appends to `held`.
  void hold(std::span<const ChunkRef> refs, std::vector<ChunkRef>& held);
  void release(std::span<const ChunkRef> refs);

  // Makes room for the absent ones of hashes[first:], in order, until there is none; no chunk of
  // `hashes` is evicted for it. Appends a chunk in state writing and its index for each that got
  // room; returns how many got none. Those from `end` on are left as they are.
  std::size_t reserve(Hashes hashes, std::size_t first, std::vector<ChunkRef>& refs,
                      std::vector<std::uint32_t>& indices, std::size_t end = SIZE_MAX);
  // Those still there become ready, except where `ok` (empty: all) has a 0, which leave; returns
  // how many became ready.
  std::size_t commit(std::span<const ChunkRef> refs, std::span<const std::uint8_t> ok = {});
  void abort(std::span<const ChunkRef> refs);

  // The leading ready run; how many of it got a pin, or lost one.
  std::size_t pin(Hashes hashes);
  std::size_t unpin(Hashes hashes);

  // Up to `count` victims of the policy; appends their hashes.
  void evict(std::size_t count, std::vector<ChunkHash>& hashes);
  std::size_t remove(Hashes hashes);
  std::size_t clear();

  // Every ready chunk: parents in front of their children, and besides that in the order of the
  // policy, who would go last in front. Leases and pins are not written down.
  [[nodiscard]] std::vector<Resident> residents() const;
  // Takes over what residents() gave, in that order, as ready chunks; how many. Nobody is evicted:
  // where there is no room, or the chunk is there already, its page is given back. One with page 0
  // is left out when there are pages; its children become roots.
  // Requires: parents in front of their children.
  std::size_t restore(std::span<const Resident> residents);

  // Notes from now on what becomes ready and what was ready and leaves; it outlives the index, or
  // null: nobody wants to know.
  void tell(ChangeLog* changes) noexcept { changes_ = changes; }
  // The ready chunks in up to `count` slots from `from` on; the slot to go on from, 0: that was the
  // last. A chunk keeps its slot as long as it stays.
  std::uint32_t ready_from(std::uint32_t from, std::size_t count,
                           std::vector<ChunkHash>& hashes) const;

  [[nodiscard]] Known known(const ChunkHash& hash) const;
  // The stay of a ready chunk.
  [[nodiscard]] std::optional<ChunkRef> ready(const ChunkHash& hash) const;
  [[nodiscard]] std::uint64_t page(ChunkRef ref) const { return entries_[ref.slot].page; }
  // Whether the chunk is still there.
  [[nodiscard]] bool holds(ChunkRef ref) const { return entries_.holds(ref); }

  [[nodiscard]] bool leaf_first() const noexcept { return leaf_first_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return entries_.capacity(); }
  [[nodiscard]] const IndexStats& stats() const noexcept { return stats_; }
  [[nodiscard]] std::size_t size_bytes() const;

 private:
  Index(std::size_t capacity, bool leaf_first, PageSource* pages);

  [[nodiscard]] std::uint32_t find(const ChunkHash& hash) const;
  void find_all(Hashes hashes, std::size_t begin, std::size_t end);
  std::size_t ready_run(Hashes hashes);
  [[nodiscard]] std::vector<std::uint32_t> by_age() const;
  void touch_found(std::size_t count, Use how);

  std::uint32_t insert(const ChunkHash& hash, std::uint32_t parent);
  void make_ready(std::uint32_t slot);
  void adopt(std::uint32_t slot, std::uint32_t parent, std::size_t depth);
  std::optional<ChunkHash> evict_one();
  void drop(std::uint32_t slot);

  void let_go(std::uint32_t slot);

  Entries entries_;
  SlotTable table_;
  EvictedMemory evicted_;
  std::unique_ptr<Policy> policy_;
  PageSource* const pages_;
  const bool leaf_first_;
  ChangeLog* changes_ = nullptr;
  IndexStats stats_;
  std::vector<std::uint32_t> found_;  // slots of the request at hand; kept for its memory
};

}  // namespace kvferry::cache
