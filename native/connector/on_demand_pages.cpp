#include "connector/on_demand_pages.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace kvferry::connector {

using cache::Hashes;
using mem::PageHandle;

OnDemandPages::OnDemandPages(std::shared_ptr<cache::ChunkCache> cache,
                             std::vector<std::byte> hashes, std::size_t first, Nanos ttl)
    : cache_(std::move(cache)),
      hashes_(std::move(hashes)),
      first_(first),
      ttl_(ttl),
      clears_(cache_->clears()),
      items_(hashes_.size() / cache::kHashBytes - first),
      wanted_(items_.size()) {}

OnDemandPages::~OnDemandPages() { abort(); }

std::size_t OnDemandPages::page_size_bytes() const noexcept {
  return cache_->pool()->page_size_bytes();
}

std::byte* OnDemandPages::buffer(std::size_t index) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (index >= wanted_ && items_[index].state == State::kNone) return nullptr;
    take(index);
    return items_[index].data;
  } catch (const std::exception&) {  // no memory for the claim
    return nullptr;
  }
}

bool OnDemandPages::wanted() const noexcept {
  const std::lock_guard lock(mutex_);
  return wanted_ > 0;
}

void OnDemandPages::keep(std::size_t count) {
  const std::lock_guard lock(mutex_);
  wanted_ = std::min(count, wanted_);
  for (std::size_t index = 0; index < wanted_; ++index) take(index);
}

// With the lock. What was found out once stays.
void OnDemandPages::take(std::size_t index) {
  Item& item = items_[index];
  if (item.state != State::kNone) return;
  // All of the request, so that no chunk of it is evicted for another one.
  const auto got = cache_->reserve_one(Hashes(hashes_), first_ + index, ttl_, clears_);
  if (got.id == 0) {
    item.state = got.shed > 0 ? State::kNoRoom : State::kElsewhere;
    return;
  }
  item.reservation = got.id;
  item.page = got.pages.front();
  const auto memory = cache_->pool()->bytes(PageHandle::unpack(item.page));
  // Somebody may have removed the chunk already; its memory is ours all the same.
  item.state = memory ? State::kPlaced : State::kNoRoom;
  item.data = memory ? memory->data() : nullptr;
}

void OnDemandPages::states(std::span<std::uint8_t> states, std::span<std::uint64_t> pages) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t index = 0; index < items_.size(); ++index) {
    states[index] = static_cast<std::uint8_t>(items_[index].state);
    pages[index] = items_[index].page;
  }
}

std::size_t OnDemandPages::commit(std::span<const std::uint8_t> ok) {
  const std::lock_guard lock(mutex_);
  wanted_ = 0;
  std::size_t count = 0;
  // Children first, as in one commit of all: a parent is the younger one.
  for (std::size_t index = items_.size(); index-- > 0;) {
    Item& item = items_[index];
    if (item.reservation == 0) continue;
    const std::uint64_t reservation = std::exchange(item.reservation, 0);
    item.data = nullptr;
    if (item.state == State::kPlaced && index < ok.size() && ok[index] != 0) {
      const auto committed = cache_->commit(reservation, {});
      count += committed ? *committed : 0;
    } else {
      cache_->abort(reservation);
    }
  }
  return count;
}

}  // namespace kvferry::connector
