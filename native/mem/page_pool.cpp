#include "mem/page_pool.hpp"

#include <algorithm>
#include <string>
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

Error not_shared() {
  return {Errc::kInvalidArgument, "only a pool over a shared segment grants and holds back pages"};
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

// --- Pages of a shared segment ------------------------------------------------------------------
// How they come into use and leave it again. Memory is moved outside of the pool's lock: the pages
// in question are held back meanwhile, and only these calls, one at a time, look at pages that are
// held back.

Resized PagePool::grow(std::size_t count) {
  if (!segment_) return {0, not_shared()};
  const std::lock_guard resize(resize_mutex_);
  Resized done;
  for (; done.count < count; ++done.count) {
    const auto index = next_held();
    if (!index) break;
    if (auto supplied = supply(*index); !supplied) {
      done.error = supplied.error();
      break;
    }
    const std::lock_guard lock(mutex_);
    ++granted_count_;
    pages_[*index].state = Page::State::kFree;
    free_.push_back(*index);
  }
  return done;
}

Resized PagePool::shrink(std::size_t count) {
  if (!segment_) return {0, not_shared()};
  const std::lock_guard resize(resize_mutex_);
  std::vector<std::uint32_t> cold;
  {
    const std::lock_guard lock(mutex_);
    const auto end = free_.begin() + static_cast<std::ptrdiff_t>(std::min(count, free_.size()));
    cold.assign(free_.begin(), end);
    free_.erase(free_.begin(), end);
    granted_count_ -= cold.size();
    for (const std::uint32_t index : cold) {
      pages_[index].state = Page::State::kHeld;
      ++pages_[index].generation;
      held_from_ = std::min<std::size_t>(held_from_, index);
    }
  }
  Resized done{cold.size(), std::nullopt};
  for (const std::uint32_t index : cold) {
    if (auto stripped = strip(index); !stripped && !done.error) done.error = stripped.error();
  }
  return done;
}

Result<PageHandle> PagePool::claim(std::uint32_t index) {
  if (!segment_) return not_shared();
  const std::lock_guard resize(resize_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (index >= pages_.size()) {
      return Error{Errc::kInvalidArgument, "claim: there is no page " + std::to_string(index)};
    }
    if (pages_[index].state == Page::State::kFree) {
      free_.erase(std::ranges::find(free_, index));
      return use(index);
    }
    if (pages_[index].state != Page::State::kHeld) {
      return Error{Errc::kInvalidArgument, "claim: page " + std::to_string(index) + " is in use"};
    }
  }
  if (auto supplied = supply(index); !supplied) return supplied.error();
  const std::lock_guard lock(mutex_);
  ++granted_count_;
  return use(index);
}

Outcome PagePool::trim() {
  if (!segment_) return not_shared();
  const std::lock_guard resize(resize_mutex_);
  for (std::size_t index = 0; index < pages_.size(); ++index) {
    if (!all_held(index, index + 1)) continue;
    if (auto stripped = strip(static_cast<std::uint32_t>(index)); !stripped) return stripped;
  }
  return Done{};
}

std::optional<std::uint32_t> PagePool::next_held() {
  const std::lock_guard lock(mutex_);
  while (held_from_ < pages_.size() && pages_[held_from_].state != Page::State::kHeld) ++held_from_;
  if (held_from_ == pages_.size()) return std::nullopt;
  return static_cast<std::uint32_t>(held_from_);
}

// Whether pages [begin, end) are held back, as far as they exist.
bool PagePool::all_held(std::size_t begin, std::size_t end) const {
  const std::lock_guard lock(mutex_);
  end = std::min(end, pages_.size());
  for (std::size_t index = begin; index < end; ++index) {
    if (pages_[index].state != Page::State::kHeld) return false;
  }
  return true;
}

// Requires: the page is held back.
Outcome PagePool::supply(std::uint32_t index) {
  auto done = segment_->commit(index * page_stride_bytes_, page_size_bytes_);
  if (done && prefault_) done = segment_->populate(index * page_stride_bytes_, page_size_bytes_);
  if (!done) {  // it may have got a part before the memory ran out
    [[maybe_unused]] const auto stripped = strip(index);
  }
  return done;
}

// Takes the memory of the blocks that the page is in, less those with a page that is granted.
// Requires: the page is held back.
Outcome PagePool::strip(std::uint32_t index) {
  const std::size_t block = segment_->block_size_bytes();
  const auto unused = [this, block](std::size_t number) {
    return all_held(number * block / page_stride_bytes_,
                    ((number + 1) * block - 1) / page_stride_bytes_ + 1);
  };
  std::size_t begin = index * page_stride_bytes_ / block;
  std::size_t end = (index * page_stride_bytes_ + page_size_bytes_ - 1) / block + 1;
  if (!unused(begin)) ++begin;
  if (begin < end && !unused(end - 1)) --end;
  if (begin >= end) return Done{};
  return segment_->discard(begin * block, (end - begin) * block);
}

}  // namespace kvferry::mem
