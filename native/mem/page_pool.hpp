#pragma once
// PagePool: one arena, or one shared segment, cut into equal pages; each page holds one chunk.
//
// A page is free, used, or retired: freed by its owner while a lease still reads or writes it. A
// retired page becomes free with its last release(), so nobody is handed memory that another
// still touches. A handle names one use of a page: once the page is free again, the handle is
// stale, and using it is an error and never somebody else's bytes.
//
// Over a segment, pages are held back until they are granted: a page that is held back has no
// memory and is not handed out. grow() and claim() grant pages, shrink() holds free ones back. A
// page that is in use, or retired, is never taken. Blocks of the segment that are larger than a
// page (see SharedSegment) have memory while any page in them is granted.
//
// Threads: every call from any thread; one mutex, held for a few instructions (for n pages in
//   allocate_many(), for a look at every page in grow()). Calls that grant and hold back wait for
//   each other, and nobody else waits for the memory that they move.
// Lifetime: views end with the pool. It neither copies nor moves.
// Fork: the child has a copy of pages and free list (see Arena); a child that was forked while
//   another thread was inside the pool must not use it.
// Limits: at most 2^32 - 1 pages. A generation returns after 2^32 uses of one page.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "mem/arena.hpp"
#include "mem/shared_segment.hpp"

namespace kvferry::mem {

struct PageHandle {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;  // starts at 1, so a handle of zeros is stale

  // One number for language borders.
  [[nodiscard]] std::uint64_t packed() const noexcept {
    return std::uint64_t{generation} << 32 | index;
  }
  static PageHandle unpack(std::uint64_t packed) noexcept {
    return {static_cast<std::uint32_t>(packed), static_cast<std::uint32_t>(packed >> 32)};
  }
  bool operator==(const PageHandle&) const = default;
};

struct PoolStats {
  std::size_t pages_count = 0;
  std::size_t free_count = 0;
  std::size_t used_count_max = 0;  // the most pages that were granted and not free at one time
  std::size_t granted_count = 0;   // not held back: all of them, but for a pool over a segment
};

// How far grow() or shrink() came, and why not further where something went wrong.
struct Resized {
  std::size_t count = 0;
  std::optional<Error> error;
};

class PagePool {
 public:
  // Fails with: kInvalidArgument for a size or count of 0 or beyond the limits; what Arena::map
  // fails with.
  static Result<std::unique_ptr<PagePool>> create(std::size_t page_size_bytes,
                                                  std::size_t pages_count,
                                                  ArenaOptions options = {});
  // Pages of a segment, all held back, whatever memory it has (see trim()). With `prefault` a page
  // that is granted is cleared and mapped here by then, so that its first users need not wait.
  // Fails with: kInvalidArgument for no segment, a size or count of 0 or beyond the limits, or a
  // segment shorter than pages_count strides.
  static Result<std::unique_ptr<PagePool>> over(std::shared_ptr<SharedSegment> segment,
                                                std::size_t page_size_bytes,
                                                std::size_t pages_count, bool prefault = false);
  // What page_stride_bytes() will be.
  [[nodiscard]] static std::size_t stride_of(std::size_t page_size_bytes) noexcept;
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // The page that was freed last, because it is the warmest; nothing when the pool is exhausted.
  [[nodiscard]] std::optional<PageHandle> allocate();
  // Fills all of `handles` or changes nothing and returns false.
  [[nodiscard]] bool allocate_many(std::span<PageHandle> handles);

  // Ends the use of a page: at once, or with its last lease.
  // Fails with: kInvalidArgument for a handle that is foreign, stale or freed before.
  Outcome free(PageHandle handle);

  // Keeps a page from being reused until release(). Each lease needs its own release.
  // Fails with: kInvalidArgument as free() does.
  Result<MutableBytes> lease(PageHandle handle);
  // Fails with: kInvalidArgument when the handle has no lease.
  Outcome release(PageHandle handle);

  // The memory of a page, valid until free(). Fails with: kInvalidArgument as free() does.
  [[nodiscard]] Result<MutableBytes> bytes(PageHandle handle) const;

  // Of a pool over a segment; others answer kInvalidArgument.
  // Grants up to `count` pages that are held back, the lowest first, each as soon as it has memory.
  // Stops where the system refuses memory, and where none is left, which is no error.
  Resized grow(std::size_t count);
  // Holds up to `count` free pages back, the coldest first, and gives their memory to the system;
  // how many. Where that fails the page is held back all the same and keeps its memory until
  // trim().
  Resized shrink(std::size_t count);
  // Grants and allocates a certain page, with the content that the segment has there.
  // Fails with: kInvalidArgument for a page that is not there or in use; kSystem without memory.
  Result<PageHandle> claim(std::uint32_t index);
  // Gives back what memory the pages that are held back have: of a former owner, after its pages
  // were claimed.
  Outcome trim();

  [[nodiscard]] PoolStats stats() const;
  [[nodiscard]] const Arena& arena() const noexcept {
    return segment_ ? segment_->arena() : *arena_;
  }
  [[nodiscard]] std::size_t page_size_bytes() const noexcept { return page_size_bytes_; }
  // From one page to the next: the page size rounded up to 4096, below 4 KiB to 64 bytes.
  [[nodiscard]] std::size_t page_stride_bytes() const noexcept { return page_stride_bytes_; }

 private:
  struct Page {
    std::uint32_t generation = 1;
    std::uint32_t leases_count = 0;
    enum class State : std::uint8_t { kFree, kUsed, kRetired, kHeld } state = State::kFree;
  };

  PagePool(std::optional<Arena> arena, std::shared_ptr<SharedSegment> segment,
           std::size_t page_size_bytes, std::size_t pages_count, bool prefault);

  [[nodiscard]] bool is_used(PageHandle handle) const;
  [[nodiscard]] PageHandle take();
  [[nodiscard]] MutableBytes memory(std::uint32_t index) const;
  void recycle(std::uint32_t index);
  [[nodiscard]] PageHandle use(std::uint32_t index);
  [[nodiscard]] std::optional<std::uint32_t> next_held();
  [[nodiscard]] bool all_held(std::size_t begin, std::size_t end) const;
  Outcome supply(std::uint32_t index);
  Outcome strip(std::uint32_t index);

  const std::optional<Arena> arena_;              // without a segment
  const std::shared_ptr<SharedSegment> segment_;  // owners: this, Python's SharedSegment
  const std::size_t page_size_bytes_;
  const std::size_t page_stride_bytes_;
  const bool prefault_;  // of a segment

  std::mutex resize_mutex_;   // for who grants or holds back; taken before the other
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Page> pages_;
  std::vector<std::uint32_t> free_;  // indexes; the last is handed out next
  std::size_t used_count_max_ = 0;
  std::size_t granted_count_ = 0;
  std::size_t held_from_ = 0;  // no page in front of this one is held back
};

}  // namespace kvferry::mem
