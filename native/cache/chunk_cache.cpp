#include "cache/chunk_cache.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvferry::cache {

using mem::PageHandle;
using Lock = std::lock_guard<std::mutex>;

class ChunkCache::PoolPages final : public PageSource {
 public:
  explicit PoolPages(mem::PagePool& pool) : pool_(pool) {}

  std::optional<std::uint64_t> take() override {
    const auto handle = pool_.allocate();
    if (!handle) return std::nullopt;
    return handle->packed();
  }
  void give_back(std::uint64_t page) noexcept override {
    // Somebody else may have freed it by its handle; then it is gone already.
    [[maybe_unused]] const auto outcome = pool_.free(PageHandle::unpack(page));
  }

 private:
  mem::PagePool& pool_;
};

Result<std::unique_ptr<ChunkCache>> ChunkCache::create(std::size_t capacity,
                                                       std::string_view policy, bool leaf_first,
                                                       std::shared_ptr<mem::PagePool> pool,
                                                       Clock clock) {
  if (pool && capacity > pool->stats().pages_count) {
    return Error{Errc::kInvalidArgument, "a capacity of " + std::to_string(capacity) +
                                             " chunks needs as many pages; " + "the pool has " +
                                             std::to_string(pool->stats().pages_count)};
  }
  std::unique_ptr<ChunkCache> cache(new ChunkCache(std::move(pool), clock));
  auto index = Index::create(capacity, policy, leaf_first, cache->pages_.get());
  if (!index) return index.error();
  cache->index_ = std::move(*index);
  return cache;
}

ChunkCache::ChunkCache(std::shared_ptr<mem::PagePool> pool, Clock clock)
    : pool_(std::move(pool)), clock_(clock) {
  if (pool_) pages_ = std::make_unique<PoolPages>(*pool_);
}

ChunkCache::~ChunkCache() {
  if (!index_) return;
  index_->clear();
  holders_.for_each([this](const Holder& holder) { release_pages(holder); });
}

// The holder's right to touch memory ends.
void ChunkCache::release_pages(const Holder& holder) {
  for (const std::uint64_t page : holder.pages) {
    [[maybe_unused]] const auto outcome = pool_->release(PageHandle::unpack(page));
  }
}

// The pages of holder.refs, leased in the pool. Requires: the chunks are resident.
void ChunkCache::lease_pages(Holder& holder) {
  if (!pool_) return;
  holder.pages.reserve(holder.refs.size());
  for (const ChunkRef ref : holder.refs) {
    const std::uint64_t page = index_->page(ref);
    [[maybe_unused]] const auto outcome = pool_->lease(PageHandle::unpack(page));
    holder.pages.push_back(page);
  }
}

void ChunkCache::expire() {
  const Nanos now = clock_();
  while (const auto id = holders_.expire_next(now)) {
    const Holder& holder = *holders_.find(*id);
    if (holder.kind == Holder::Kind::kLease) {
      index_->release(holder.refs);
      ++leases_expired_;
    } else {
      index_->abort(holder.refs);
      ++reservations_expired_;
    }
    if (holder.pages.empty()) holders_.erase(*id);
  }
}

Prefix ChunkCache::lookup(Hashes hashes) {
  const Lock lock(mutex_);
  expire();
  return index_->lookup(hashes);
}

std::size_t ChunkCache::touch(Hashes hashes, Use how) {
  const Lock lock(mutex_);
  expire();
  return index_->touch(hashes, how);
}

ChunkCache::Lease ChunkCache::acquire(Hashes hashes, Nanos ttl, Use how) {
  const Lock lock(mutex_);
  expire();
  Holder holder(Holder::Kind::kLease, add_time(clock_(), ttl));
  index_->acquire(hashes, holder.refs, how);
  if (holder.refs.empty()) return {};
  lease_pages(holder);
  Lease lease{0, holder.pages};
  if (!pool_) lease.pages.assign(holder.refs.size(), 0);
  lease.id = holders_.add(std::move(holder));
  return lease;
}

bool ChunkCache::release(std::uint64_t lease_id) {
  const Lock lock(mutex_);
  expire();
  const Holder* found = holders_.find(lease_id);
  if (found == nullptr || found->kind != Holder::Kind::kLease) return false;
  const Holder holder = holders_.erase(lease_id);
  if (!holder.expired) index_->release(holder.refs);
  release_pages(holder);
  return !holder.expired;
}

ChunkCache::Reservation ChunkCache::reserve(Hashes hashes, std::size_t first, Nanos ttl) {
  const Lock lock(mutex_);
  expire();
  Holder holder(Holder::Kind::kReservation, add_time(clock_(), ttl));
  Reservation reservation;
  reservation.shed = index_->reserve(hashes, first, holder.refs, reservation.indices);
  return keep(std::move(holder), std::move(reservation));
}

ChunkCache::Reservation ChunkCache::reserve_one(Hashes hashes, std::size_t index, Nanos ttl,
                                                std::uint64_t clears) {
  const Lock lock(mutex_);
  expire();
  Reservation reservation;
  if (clears != clears_) {
    reservation.shed = 1;
    return reservation;
  }
  Holder holder(Holder::Kind::kReservation, add_time(clock_(), ttl));
  reservation.shed = index_->reserve(hashes, index, holder.refs, reservation.indices, index + 1);
  return keep(std::move(holder), std::move(reservation));
}

std::uint64_t ChunkCache::clears() {
  const Lock lock(mutex_);
  return clears_;
}

// With the lock: the chunks of `holder` have room.
ChunkCache::Reservation ChunkCache::keep(Holder holder, Reservation reservation) {
  if (holder.refs.empty()) return reservation;
  lease_pages(holder);
  reservation.pages = holder.pages;
  if (!pool_) reservation.pages.assign(holder.refs.size(), 0);
  reservation.id = holders_.add(std::move(holder));
  return reservation;
}

Result<std::size_t> ChunkCache::commit(std::uint64_t reservation_id,
                                       std::span<const std::uint8_t> ok) {
  const Lock lock(mutex_);
  expire();
  const Holder* found = holders_.find(reservation_id);
  if (found == nullptr || found->kind != Holder::Kind::kReservation) return std::size_t{0};
  if (!ok.empty() && ok.size() != found->refs.size()) {
    return Error{Errc::kInvalidArgument, "commit: " + std::to_string(found->refs.size()) +
                                             " chunks were reserved, " + std::to_string(ok.size()) +
                                             " were answered for"};
  }
  const Holder holder = holders_.erase(reservation_id);
  const std::size_t count = holder.expired ? 0 : index_->commit(holder.refs, ok);
  release_pages(holder);
  return count;
}

ChunkCache::Lease ChunkCache::commit_leased(std::uint64_t reservation_id, Nanos ttl) {
  const Lock lock(mutex_);
  expire();
  const Holder* found = holders_.find(reservation_id);
  if (found == nullptr || found->kind != Holder::Kind::kReservation) return {};
  const Holder writer = holders_.erase(reservation_id);
  Holder reader(Holder::Kind::kLease, add_time(clock_(), ttl));
  if (!writer.expired) {
    index_->commit(writer.refs);
    index_->hold(writer.refs, reader.refs);
    lease_pages(reader);
  }
  release_pages(writer);
  if (reader.refs.empty()) return {};
  Lease lease{0, reader.pages};
  if (!pool_) lease.pages.assign(reader.refs.size(), 0);
  lease.id = holders_.add(std::move(reader));
  return lease;
}

bool ChunkCache::abort(std::uint64_t reservation_id) {
  const Lock lock(mutex_);
  expire();
  const Holder* found = holders_.find(reservation_id);
  if (found == nullptr || found->kind != Holder::Kind::kReservation) return false;
  const Holder holder = holders_.erase(reservation_id);
  if (!holder.expired) index_->abort(holder.refs);
  release_pages(holder);
  return !holder.expired;
}

bool ChunkCache::extend(std::uint64_t id, Nanos ttl) {
  const Lock lock(mutex_);
  expire();
  return holders_.extend(id, add_time(clock_(), ttl));
}

bool ChunkCache::revoke(std::uint64_t id) {
  const Lock lock(mutex_);
  expire();
  if (holders_.find(id) == nullptr) return false;
  const Holder holder = holders_.erase(id);
  if (!holder.expired) {
    if (holder.kind == Holder::Kind::kLease) {
      index_->release(holder.refs);
    } else {
      index_->abort(holder.refs);
    }
  }
  release_pages(holder);
  return true;
}

std::size_t ChunkCache::pin(Hashes hashes) {
  const Lock lock(mutex_);
  expire();
  return index_->pin(hashes);
}

std::size_t ChunkCache::unpin(Hashes hashes) {
  const Lock lock(mutex_);
  expire();
  return index_->unpin(hashes);
}

std::vector<ChunkHash> ChunkCache::evict(std::size_t count) {
  const Lock lock(mutex_);
  expire();
  std::vector<ChunkHash> hashes;
  index_->evict(count, hashes);
  return hashes;
}

std::size_t ChunkCache::remove(Hashes hashes) {
  const Lock lock(mutex_);
  expire();
  return index_->remove(hashes);
}

std::size_t ChunkCache::clear() {
  const Lock lock(mutex_);
  expire();
  ++clears_;
  return index_->clear();
}

std::vector<Resident> ChunkCache::residents() {
  const Lock lock(mutex_);
  expire();
  return index_->residents();
}

Result<std::size_t> ChunkCache::adopt(std::span<const Resident> residents) {
  std::vector<std::uint64_t> pages;
  for (std::size_t i = 0; i < residents.size(); ++i) {
    if (residents[i].parent != kNone && residents[i].parent >= i) {
      return Error{Errc::kInvalidArgument,
                   "adopt: chunk " + std::to_string(i) + " comes before its parent"};
    }
    if (!pool_ || residents[i].page == 0) continue;
    if (!pool_->bytes(PageHandle::unpack(residents[i].page))) {
      return Error{Errc::kInvalidArgument,
                   "adopt: the page of chunk " + std::to_string(i) + " is not in use"};
    }
    pages.push_back(residents[i].page);
  }
  std::ranges::sort(pages);
  if (std::ranges::adjacent_find(pages) != pages.end()) {
    return Error{Errc::kInvalidArgument, "adopt: two chunks name the same page"};
  }
  const Lock lock(mutex_);
  expire();
  return index_->restore(residents);
}

std::uint64_t ChunkCache::watch(std::size_t kept) {
  const Lock lock(mutex_);
  if (!log_) {
    log_ = std::make_unique<ChangeLog>(std::max<std::size_t>(1, kept));
    index_->tell(log_.get());
  }
  return log_->next();
}

std::optional<std::uint64_t> ChunkCache::changes(std::uint64_t from, std::size_t max,
                                                 std::vector<Change>& out) {
  const Lock lock(mutex_);
  expire();
  if (!log_) return std::nullopt;
  return log_->read(from, max, out);
}

std::uint32_t ChunkCache::ready_from(std::uint32_t from, std::size_t count,
                                     std::vector<ChunkHash>& hashes) {
  const Lock lock(mutex_);
  expire();
  return index_->ready_from(from, count, hashes);
}

void ChunkCache::states(Hashes hashes, std::span<std::uint8_t> states) {
  const Lock lock(mutex_);
  expire();
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    states[i] = static_cast<std::uint8_t>(index_->known(hashes[i]));
  }
}

void ChunkCache::generations(Hashes hashes, std::span<std::uint64_t> generations) {
  const Lock lock(mutex_);
  expire();
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const auto ref = index_->ready(hashes[i]);
    generations[i] = ref ? ref->packed() : 0;
  }
}

std::size_t ChunkCache::insert(Hashes hashes, std::size_t first) {
  const Lock lock(mutex_);
  expire();
  refs_.clear();
  indices_.clear();
  index_->reserve(hashes, first, refs_, indices_);
  return index_->commit(refs_);
}

ChunkCache::Hits ChunkCache::access(Hashes hashes) {
  const Lock lock(mutex_);
  expire();
  Hits hits;
  hits.prefix = index_->lookup(hashes).ready;
  const auto use = [&](Hashes part) {
    refs_.clear();
    indices_.clear();
    hits.block += index_->touch_any(part);
    index_->reserve(part, 0, refs_, indices_);
    index_->commit(refs_);
  };
  if (index_->leaf_first()) {
    use(hashes);
  } else {
    for (std::size_t i = 0; i < hashes.size(); ++i) use(hashes.part(i, 1));
  }
  return hits;
}

CacheStats ChunkCache::stats() {
  const Lock lock(mutex_);
  expire();
  return {.index = index_->stats(),
          .leases = holders_.leases(),
          .reservations = holders_.reservations(),
          .expired_held = holders_.expired(),
          .leases_expired = leases_expired_,
          .reservations_expired = reservations_expired_,
          .index_bytes = index_->size_bytes()};
}

}  // namespace kvferry::cache
