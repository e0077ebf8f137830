#include "mem/page_pool.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::mem {
namespace {

constexpr std::size_t kPagesCountMax = UINT32_MAX;

Error not_in_use(const char* what) {
  return Error{Errc::kInvalidArgument,
               std::string(what) + ": the page was freed before, or is not of this pool"};
}

// The bytes of all pages.
Result<std::size_t> size_of(std::size_t page_size_bytes, std::size_t pages_count) {
  if (page_size_bytes == 0 || pages_count == 0) {
    return Error{Errc::kInvalidArgument, "a pool needs at least one page of at least one byte"};
  }
  if (pages_count > kPagesCountMax || page_size_bytes > SIZE_MAX / 2 / pages_count) {
    return Error{Errc::kInvalidArgument, "the pool has too many pages, or too large ones"};
  }
  const std::size_t stride_bytes = PagePool::stride_of(page_size_bytes);
  if (stride_bytes > SIZE_MAX / 2 / pages_count) {
    return Error{Errc::kInvalidArgument, "the pool is larger than the address space"};
  }
  return stride_bytes * pages_count;
}

}  // namespace

std::size_t PagePool::stride_of(std::size_t page_size_bytes) noexcept {
  const std::size_t unit = page_size_bytes >= 4 * kKiB ? 4 * kKiB : 64;
  return (page_size_bytes + unit - 1) / unit * unit;
}

Result<std::unique_ptr<PagePool>> PagePool::create(std::size_t page_size_bytes,
                                                   std::size_t pages_count, ArenaOptions options) {
  const auto size_bytes = size_of(page_size_bytes, pages_count);
  if (!size_bytes) return size_bytes.error();
  auto arena = Arena::map(*size_bytes, options);
  if (!arena) return arena.error();
  return std::unique_ptr<PagePool>(
      new PagePool(std::move(*arena), nullptr, page_size_bytes, pages_count, false));
}

Result<std::unique_ptr<PagePool>> PagePool::over(std::shared_ptr<SharedSegment> segment,
                                                 std::size_t page_size_bytes,
                                                 std::size_t pages_count, bool prefault) {
  const auto size_bytes = size_of(page_size_bytes, pages_count);
  if (!size_bytes) return size_bytes.error();
  if (!segment || segment->size_bytes() < *size_bytes) {
    return Error{Errc::kInvalidArgument, "the shared segment is shorter than the pool's " +
                                             std::to_string(*size_bytes) + " bytes"};
  }
  return std::unique_ptr<PagePool>(
      new PagePool(std::nullopt, std::move(segment), page_size_bytes, pages_count, prefault));
}

PagePool::PagePool(std::optional<Arena> arena, std::shared_ptr<SharedSegment> segment,
                   std::size_t page_size_bytes, std::size_t pages_count, bool prefault)
    : arena_(std::move(arena)),
      segment_(std::move(segment)),
      page_size_bytes_(page_size_bytes),
      page_stride_bytes_(stride_of(page_size_bytes)),
      prefault_(prefault),
      pages_(pages_count) {
  free_.reserve(pages_count);
  if (segment_) {
    for (Page& page : pages_) page.state = Page::State::kHeld;
    return;
  }
  granted_count_ = held_from_ = pages_count;
  // Low addresses go out first.
  for (std::size_t index = pages_count; index-- > 0;) {
    free_.push_back(static_cast<std::uint32_t>(index));
  }
}

std::optional<PageHandle> PagePool::allocate() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::nullopt;
  return take();
}

bool PagePool::allocate_many(std::span<PageHandle> handles) {
  const std::lock_guard lock(mutex_);
  if (free_.size() < handles.size()) return false;
  std::generate(handles.begin(), handles.end(), [this] { return take(); });
  return true;
}

Outcome PagePool::free(PageHandle handle) {
  const std::lock_guard lock(mutex_);
  if (!is_used(handle)) return not_in_use("free");
  Page& page = pages_[handle.index];
  if (page.leases_count > 0) {
    page.state = Page::State::kRetired;
  } else {
    recycle(handle.index);
  }
  return Done{};
}

Result<MutableBytes> PagePool::lease(PageHandle handle) {
  const std::lock_guard lock(mutex_);
  if (!is_used(handle)) return not_in_use("lease");
  ++pages_[handle.index].leases_count;
  return memory(handle.index);
}

Outcome PagePool::release(PageHandle handle) {
  const std::lock_guard lock(mutex_);
  // A retired page still has the generation of the handle that leased it, a recycled one has not.
  if (handle.index >= pages_.size() || pages_[handle.index].generation != handle.generation ||
      pages_[handle.index].leases_count == 0) {
    return Error{Errc::kInvalidArgument, "release: the page has no lease"};
  }
  Page& page = pages_[handle.index];
  if (--page.leases_count == 0 && page.state == Page::State::kRetired) recycle(handle.index);
  return Done{};
}

Result<MutableBytes> PagePool::bytes(PageHandle handle) const {
  const std::lock_guard lock(mutex_);
  if (!is_used(handle)) return not_in_use("bytes");
  return memory(handle.index);
}

PoolStats PagePool::stats() const {
  const std::lock_guard lock(mutex_);
  return {pages_.size(), free_.size(), used_count_max_, granted_count_};
}

bool PagePool::is_used(PageHandle handle) const {
  return handle.index < pages_.size() && pages_[handle.index].generation == handle.generation &&
         pages_[handle.index].state == Page::State::kUsed;
}

// Requires: a free page.
PageHandle PagePool::take() {
  const std::uint32_t index = free_.back();
  free_.pop_back();
  return use(index);
}

// Requires: it is granted, not in use, and not in free_.
PageHandle PagePool::use(std::uint32_t index) {
  used_count_max_ = std::max(used_count_max_, granted_count_ - free_.size());
  pages_[index].state = Page::State::kUsed;
  return {index, pages_[index].generation};
}

MutableBytes PagePool::memory(std::uint32_t index) const {
  return arena().bytes().subspan(index * page_stride_bytes_, page_size_bytes_);
}

void PagePool::recycle(std::uint32_t index) {
  pages_[index].state = Page::State::kFree;
  ++pages_[index].generation;
  free_.push_back(index);  // never allocates: there is room for every page
}

}  // namespace kvferry::mem
