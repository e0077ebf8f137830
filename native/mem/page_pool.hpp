#pragma once
// PagePool: one arena cut into equal pages; each page holds one chunk.
//
// A page is free, used, or retired: freed by its owner while a lease still reads or writes it. A
// retired page becomes free with its last release(), so nobody is handed memory that another
// still touches. A handle names one use of a page: once the page is free again, the handle is
// stale, and using it is an error and never somebody else's bytes.
//
// Threads: every call from any thread; one mutex, held for a few instructions (for n pages in
//   allocate_many()).
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
  std::size_t used_count_max = 0;  // the most pages that were not free at one time
};

class PagePool {
 public:
  // Fails with: kInvalidArgument for a size or count of 0 or beyond the limits; what Arena::map
  // fails with.
  static Result<std::unique_ptr<PagePool>> create(std::size_t page_size_bytes,
                                                  std::size_t pages_count,
                                                  ArenaOptions options = {});
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

  [[nodiscard]] PoolStats stats() const;
  [[nodiscard]] const Arena& arena() const noexcept { return arena_; }
  [[nodiscard]] std::size_t page_size_bytes() const noexcept { return page_size_bytes_; }
  // From one page to the next: the page size rounded up to 4096, below 4 KiB to 64 bytes.
  [[nodiscard]] std::size_t page_stride_bytes() const noexcept { return page_stride_bytes_; }

 private:
  struct Page {
    std::uint32_t generation = 1;
    std::uint32_t leases_count = 0;
    enum class State : std::uint8_t { kFree, kUsed, kRetired } state = State::kFree;
  };

  PagePool(Arena arena, std::size_t page_size_bytes, std::size_t page_stride_bytes,
           std::size_t pages_count);

  [[nodiscard]] bool is_used(PageHandle handle) const;
  [[nodiscard]] PageHandle take();
  [[nodiscard]] MutableBytes memory(std::uint32_t index) const;
  void recycle(std::uint32_t index);

  const Arena arena_;
  const std::size_t page_size_bytes_;
  const std::size_t page_stride_bytes_;

  mutable std::mutex mutex_;  // guards what follows
  std::vector<Page> pages_;
  std::vector<std::uint32_t> free_;  // indexes; the last is handed out next
  std::size_t used_count_max_ = 0;
};

}  // namespace kvferry::mem
