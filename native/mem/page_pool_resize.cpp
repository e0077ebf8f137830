// How pages of a shared segment come into use and leave it again.
//
// Memory is moved outside of the pool's lock: the pages in question are held back meanwhile, and
// only these calls, one at a time, look at pages that are held back.

#include <algorithm>
#include <string>

#include "mem/page_pool.hpp"

namespace kvferry::mem {
namespace {

Error not_shared() {
  return {Errc::kInvalidArgument, "only a pool over a shared segment grants and holds back pages"};
}

}  // namespace

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
