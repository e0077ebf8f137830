#include "mem/shared_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace kvferry::mem {
namespace {

// The kernel keeps other threads from mapping and unmapping meanwhile.
constexpr std::size_t kPieceBytes = 16 * kMiB;
constexpr int kAgainMax = 1000;

// Kernels before 5.14 cannot, and then every first use pays for itself.
Outcome populate(MutableBytes bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += kPieceBytes) {
    const std::size_t size = std::min(kPieceBytes, bytes.size() - at);
    int again = 0;
    while (::madvise(bytes.data() + at, size, MADV_POPULATE_WRITE) != 0) {
      if (errno == EINVAL) return Done{};
      if ((errno == EINTR || errno == EAGAIN) && again++ < kAgainMax) continue;
      return system_error("there is no memory behind a page of the shared segment", errno);
    }
  }
  return Done{};
}

}  // namespace

Result<std::shared_ptr<SharedPages>> SharedPages::attach(std::string path,
                                                         std::size_t segment_bytes,
                                                         PageGeometry geometry,
                                                         std::uint64_t lock) {
  if (geometry.count == 0 || geometry.size_bytes == 0 ||
      geometry.stride_bytes < geometry.size_bytes ||
      geometry.count > segment_bytes / geometry.stride_bytes) {
    return Error{Errc::kInvalidArgument, "the pages overlap, or do not fit into the segment"};
  }
  auto segment = SharedSegment::attach(std::move(path), segment_bytes, lock);
  if (!segment) return segment.error();
  return std::shared_ptr<SharedPages>(new SharedPages(std::move(*segment), geometry));
}

Outcome SharedPages::prepare(std::size_t index) {
  if (used_[index].load(std::memory_order_relaxed)) return Done{};
  const std::size_t offset = index * geometry_.stride_bytes;
  const std::size_t block = segment_->block_size_bytes();
  const std::size_t begin = offset / block * block;
  const std::size_t end = (offset + geometry_.size_bytes + block - 1) / block * block;
  auto done = populate(segment_->bytes().subspan(begin, end - begin));
  if (done) used_[index].store(true, std::memory_order_relaxed);
  return done;
}

Outcome SharedPages::prepare_all() {
  auto done = populate(segment_->bytes().first(geometry_.stride_bytes * geometry_.count));
  if (!done) return done;
  for (auto& used : used_) used.store(true, std::memory_order_relaxed);
  return done;
}

}  // namespace kvferry::mem
