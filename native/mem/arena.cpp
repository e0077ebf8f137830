#include "mem/arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <optional>

#include "base/unique_fd.hpp"

namespace kvferry::mem {
namespace {

constexpr std::size_t kSmallPageSizeBytes = 4 * kKiB;

constexpr std::size_t round_up(std::size_t size, std::size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

std::optional<MutableBytes> map_anonymous(std::size_t size_bytes, int more_flags) {
  void* base = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | more_flags, -1, 0);
  if (base == MAP_FAILED) return std::nullopt;
  return MutableBytes(static_cast<std::byte*>(base), size_bytes);
}

// A mapping that starts on a huge-page boundary: one that is longer, less what sticks out.
std::optional<MutableBytes> map_aligned(std::size_t size_bytes) {
  const auto whole = map_anonymous(size_bytes + Arena::kHugePageSizeBytes, 0);
  if (!whole) return std::nullopt;
  const auto base = reinterpret_cast<std::uintptr_t>(whole->data());
  const std::size_t head = round_up(base, Arena::kHugePageSizeBytes) - base;
  const std::size_t tail = Arena::kHugePageSizeBytes - head;
  if (head > 0) ::munmap(whole->data(), head);
  if (tail > 0) ::munmap(whole->data() + head + size_bytes, tail);
  return whole->subspan(head, size_bytes);
}

// madvise(MADV_HUGEPAGE) succeeds on hosts that never hand any out, so ask the host as well.
bool transparent_allowed() {
  const UniqueFd file(::open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC));
  char text[64];
  const ssize_t length = file ? ::read(file.get(), text, sizeof text) : 0;
  if (length <= 0) return false;
  return std::string_view(text, static_cast<std::size_t>(length)).find("[never]") ==
         std::string_view::npos;
}

void touch(MutableBytes bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kSmallPageSizeBytes) {
    *static_cast<volatile std::byte*>(&bytes[at]) = std::byte{0};
  }
}

Outcome prefault(MutableBytes bytes) {
  if (::madvise(bytes.data(), bytes.size(), MADV_POPULATE_WRITE) == 0) return Done{};
  if (errno != EINVAL) return system_error("cannot prefault the arena", errno);
  touch(bytes);  // kernels before 5.14
  return Done{};
}

}  // namespace

std::string_view name(HugePages huge_pages) noexcept {
  switch (huge_pages) {
    case HugePages::kNone:
      return "none";
    case HugePages::kTransparent:
      return "transparent";
    case HugePages::kHugetlb:
      return "hugetlb";
  }
  return "?";
}

Result<Arena> Arena::map(std::size_t size_bytes, ArenaOptions options) {
  if (size_bytes == 0) return Error{Errc::kInvalidArgument, "an arena needs at least one byte"};
  if (size_bytes > SIZE_MAX / 2) {
    return Error{Errc::kInvalidArgument, "the arena is larger than the address space"};
  }

  std::optional<MutableBytes> bytes;
  HugePages huge_pages = HugePages::kNone;
  if (options.hugetlb) {
    bytes = map_anonymous(round_up(size_bytes, kHugePageSizeBytes),
                          MAP_HUGETLB | (21 << MAP_HUGE_SHIFT));  // 2^21 bytes = 2 MiB
    if (bytes) huge_pages = HugePages::kHugetlb;
  }
  if (!bytes) {
    const std::size_t rounded = round_up(size_bytes, kSmallPageSizeBytes);
    bytes = rounded < kHugePageSizeBytes ? map_anonymous(rounded, 0) : map_aligned(rounded);
    if (!bytes) return system_error("cannot map the arena", errno);
    if (rounded >= kHugePageSizeBytes && transparent_allowed() &&
        ::madvise(bytes->data(), rounded, MADV_HUGEPAGE) == 0) {
      huge_pages = HugePages::kTransparent;
    }
  }

  Arena arena(*bytes, huge_pages);  // from here on whatever fails also unmaps
  ::madvise(bytes->data(), bytes->size(), MADV_DONTDUMP);
  if (options.prefault) {
    if (auto done = prefault(*bytes); !done) return done.error();
  }
  return arena;
}

Result<Arena> Arena::share(int file, std::size_t size_bytes, HugePages huge_pages) {
  // Without MAP_NORESERVE, huge pages would be set aside for all of it at once.
  void* base =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED) return system_error("cannot map the shared segment", errno);
  ::madvise(base, size_bytes, MADV_DONTDUMP);
  // File systems that are mounted with huge=advise wait for this; for others it means nothing.
  if (huge_pages != HugePages::kHugetlb) ::madvise(base, size_bytes, MADV_HUGEPAGE);
  return Arena({static_cast<std::byte*>(base), size_bytes}, huge_pages);
}

Arena::~Arena() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace kvferry::mem
