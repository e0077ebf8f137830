#pragma once
// Arena: one writable mapping, the memory that a page pool is cut from: anonymous and private, or
// of a file that several processes share (see SharedSegment).
//
// Lifetime: move-only; the destructor unmaps, and every view of bytes() ends with it.
// Threads: map() and the destructor belong to one thread; the bytes are plain memory.
// Fork: a private mapping is copy on write. The child sees the content of the moment of the fork;
//   what either side writes later the other never sees, and each write after it costs one page
//   copy. Of a shared mapping both see what either writes.
// Core dumps leave the mapping out: it is large, and it holds what users said.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/bytes.hpp"
#include "base/result.hpp"

namespace kvferry::mem {

// What stands behind a mapping, best first in speed and last in availability.
enum class HugePages : std::uint8_t {
  kNone,         // 4 KiB pages
  kTransparent,  // the kernel was asked for 2 MiB pages and uses them where it finds any
  kHugetlb,      // 2 MiB pages out of the pool that the administrator reserved
};

// "none", "transparent", "hugetlb".
[[nodiscard]] std::string_view name(HugePages huge_pages) noexcept;

struct ArenaOptions {
  // Try reserved huge pages first; where there are too few, the arena falls back to transparent.
  bool hugetlb = false;
  // Let the kernel supply every page now, so that no first use pays for a page fault. Without it
  // a host that is short of memory says so late, by its out-of-memory killer.
  bool prefault = true;
};

class Arena {
 public:
  static constexpr std::size_t kHugePageSizeBytes = 2 * kMiB;

  // Maps at least `size_bytes` zeroed bytes, on a 2 MiB boundary where the size allows it.
  // Fails with: kInvalidArgument for 0 bytes or more than half of the address space; kSystem when
  // the operating system refuses the memory.
  static Result<Arena> map(std::size_t size_bytes, ArenaOptions options = {});

  // Maps the first `size_bytes` of an open file, shared, nothing of it supplied. `huge_pages` is
  // what the file system gives. Memory that the file lacks when it is touched is a SIGBUS.
  // Requires: a file at least that long. Fails with: kSystem. The descriptor stays the caller's;
  // the mapping keeps the file, and the locks of its open file description, by itself.
  static Result<Arena> share(int file, std::size_t size_bytes, HugePages huge_pages);

  Arena(Arena&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), huge_pages_(other.huge_pages_) {}
  Arena& operator=(Arena&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(huge_pages_, other.huge_pages_);
    return *this;
  }
  ~Arena();

  // The whole mapping; its length is the size asked for, rounded up to whole pages.
  [[nodiscard]] MutableBytes bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_.size(); }
  [[nodiscard]] HugePages huge_pages() const noexcept { return huge_pages_; }

 private:
  Arena(MutableBytes bytes, HugePages huge_pages) noexcept
      : bytes_(bytes), huge_pages_(huge_pages) {}

  MutableBytes bytes_;
  HugePages huge_pages_;
};

}  // namespace kvferry::mem
