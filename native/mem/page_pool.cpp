#include "mem/page_pool.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::mem {
namespace {

constexpr std::size_t kPagesCountMax = UINT32_MAX;

std::size_t stride_of(std::size_t page_size_bytes) {
  const std::size_t unit = page_size_bytes >= 4 * kKiB ? 4 * kKiB : 64;
  return (page_size_bytes + unit - 1) / unit * unit;
}

Error not_in_use(const char* what) {
  return Error{Errc::kInvalidArgument,
               std::string(what) + ": the page was freed before, or is not of this pool"};
}

}  // namespace

Result<std::unique_ptr<PagePool>> PagePool::create(std::size_t page_size_bytes,
                                                   std::size_t pages_count, ArenaOptions options) {
  if (page_size_bytes == 0 || pages_count == 0) {
    return Error{Errc::kInvalidArgument, "a pool needs at least one page of at least one byte"};
  }
  if (pages_count > kPagesCountMax || page_size_bytes > SIZE_MAX / 2 / pages_count) {
    return Error{Errc::kInvalidArgument, "the pool has too many pages, or too large ones"};
  }
  const std::size_t stride_bytes = stride_of(page_size_bytes);
  if (stride_bytes > SIZE_MAX / 2 / pages_count) {
    return Error{Errc::kInvalidArgument, "the pool is larger than the address space"};
  }
  auto arena = Arena::map(stride_bytes * pages_count, options);
  if (!arena) return arena.error();
  return std::unique_ptr<PagePool>(
      new PagePool(std::move(*arena), page_size_bytes, stride_bytes, pages_count));
}

PagePool::PagePool(Arena arena, std::size_t page_size_bytes, std::size_t page_stride_bytes,
                   std::size_t pages_count)
    : arena_(std::move(arena)),
      page_size_bytes_(page_size_bytes),
      page_stride_bytes_(page_stride_bytes),
      pages_(pages_count),
      free_(pages_count) {
  // Low addresses go out first.
  auto index = static_cast<std::uint32_t>(pages_count);
  std::generate(free_.begin(), free_.end(), [&index] { return --index; });
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
  return {pages_.size(), free_.size(), used_count_max_};
}

bool PagePool::is_used(PageHandle handle) const {
  return handle.index < pages_.size() && pages_[handle.index].generation == handle.generation &&
         pages_[handle.index].state == Page::State::kUsed;
}

// Requires: a free page.
PageHandle PagePool::take() {
  const std::uint32_t index = free_.back();
  free_.pop_back();
  used_count_max_ = std::max(used_count_max_, pages_.size() - free_.size());
  pages_[index].state = Page::State::kUsed;
  return {index, pages_[index].generation};
}

MutableBytes PagePool::memory(std::uint32_t index) const {
  return arena_.bytes().subspan(index * page_stride_bytes_, page_size_bytes_);
}

void PagePool::recycle(std::uint32_t index) {
  pages_[index].state = Page::State::kFree;
  ++pages_[index].generation;
  free_.push_back(index);  // within the capacity that the constructor reserved
}

}  // namespace kvferry::mem
