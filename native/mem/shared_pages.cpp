#include "mem/shared_pages.hpp"

#include <utility>

namespace kvferry::mem {

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
  auto done = segment_->populate(index * geometry_.stride_bytes, geometry_.size_bytes);
  if (done) used_[index].store(true, std::memory_order_relaxed);
  return done;
}

Outcome SharedPages::prepare_all() {
  auto done = segment_->populate(0, geometry_.stride_bytes * geometry_.count);
  if (!done) return done;
  for (auto& used : used_) used.store(true, std::memory_order_relaxed);
  return done;
}

}  // namespace kvferry::mem
