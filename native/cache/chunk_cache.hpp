#pragma once
// ChunkCache: an Index with the pages of a pool, leases with deadlines, a lock and a clock.
//
// Who may touch a page, and until when:
// - a page belongs to its entry; when the chunk leaves, it is free()d in the pool;
// - reserve() and acquire() lease each page in the pool for their holder, so memory that somebody
//   may still touch is never handed out again, whatever happened to the entry;
// - commit(), abort(), release() and revoke() end that. Deadlines do not: they end the claim on the
//   chunks (a leased one may be evicted, a reserved one leaves), because nobody knows whether the
//   holder has stopped. An expired holder that will never come back, as its process died, is
//   revoke()d by whoever knows that; until then its pages are lost to the pool. stats() counts
//   expired holders that still have memory.
//
// Expiry is lazy: whatever call comes next settles what is due. An expired lease or reservation
// answers false or 0, never an error. Ids are given once.
// A cache outlives its process when the pages do (see SharedSegment): residents() writes down what
// is there, and adopt() takes it over after PagePool::claim() of the pages. Whoever restores
// verifies the bytes; nothing here looks at them.
// Several caches may share a pool. Each evicts only its own chunks for a page, and sheds when that
// brings none: the memory of the others is theirs.
//
// Threads: any. One mutex, for the length of a call; the pool's lock is taken inside it.
// Fork: the child must not use a cache that the parent uses from other threads.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "cache/change_log.hpp"
#include "cache/holders.hpp"
#include "cache/index.hpp"
#include "mem/page_pool.hpp"

namespace kvferry::cache {

struct CacheStats {
  IndexStats index;
  std::uint64_t leases = 0, reservations = 0, expired_held = 0;  // holders, now
  std::uint64_t leases_expired = 0, reservations_expired = 0;    // since the start
  std::uint64_t index_bytes = 0;
};

class ChunkCache {
 public:
  struct Lease {
    std::uint64_t id = 0;  // 0: nothing was leased
    std::vector<std::uint64_t> pages;
  };
  struct Reservation {
    std::uint64_t id = 0;  // 0: nothing was reserved
    std::vector<std::uint32_t> indices;
    std::vector<std::uint64_t> pages;
    std::size_t shed = 0;
  };
  struct Hits {
    std::size_t prefix = 0, block = 0;
  };
  using Clock = Nanos (*)();

  // Fails with: what Index::create fails with; kInvalidArgument for more capacity than pages.
  static Result<std::unique_ptr<ChunkCache>> create(std::size_t capacity, std::string_view policy,
                                                    bool leaf_first,
                                                    std::shared_ptr<mem::PagePool> pool = nullptr,
                                                    Clock clock = &monotonic_ns);
  // Ends every claim on the pool. Requires: nobody touches pages of this cache any more.
  ~ChunkCache();
  ChunkCache(const ChunkCache&) = delete;
  ChunkCache& operator=(const ChunkCache&) = delete;

  Prefix lookup(Hashes hashes);
  std::size_t touch(Hashes hashes, Use how = Use::kHere);
  Lease acquire(Hashes hashes, Nanos ttl, Use how = Use::kHere);
  // Whether it was in force until now.
  bool release(std::uint64_t lease_id);

  Reservation reserve(Hashes hashes, std::size_t first, Nanos ttl);
  // The same for hashes[index] alone, of a request that began when clears() was so many: nothing
  // that was asked for before a clear() comes in behind it, and it counts as shed.
  Reservation reserve_one(Hashes hashes, std::size_t index, Nanos ttl, std::uint64_t clears);
  // How often clear() was called.
  [[nodiscard]] std::uint64_t clears();
  // `ok` is empty or has one byte for each reserved chunk; 0 drops it.
  // Fails with: kInvalidArgument for another length; the reservation stays.
  Result<std::size_t> commit(std::uint64_t reservation_id, std::span<const std::uint8_t> ok);
  // commit() of all of it, and a lease of what became ready, with the pages of the reservation.
  Lease commit_leased(std::uint64_t reservation_id, Nanos ttl);
  bool abort(std::uint64_t reservation_id);

  bool extend(std::uint64_t id, Nanos ttl);
  // Ends a lease or reservation for a holder that is gone and touches no memory any more, in force
  // or expired. Whether it was known.
  bool revoke(std::uint64_t id);

  std::size_t pin(Hashes hashes);
  std::size_t unpin(Hashes hashes);
  std::vector<ChunkHash> evict(std::size_t count);
  std::size_t remove(Hashes hashes);
  std::size_t clear();

  // See Index; costs about as long as a lookup of each chunk.
  std::vector<Resident> residents();
  // See Index::restore(); how many came in. Each page is used in the pool, and is the cache's from
  // here on: those of chunks that are left out are freed.
  // Fails with: kInvalidArgument for a parent behind its child, a page twice, or one that is not in
  // use in the pool; then nothing was done, and the pages are still the caller's.
  Result<std::size_t> adopt(std::span<const Resident> residents);

  // For those who tell others what is here. Changes are kept, so many of them, from the first call
  // on; returns the number of the next. Called again it keeps what it has.
  std::uint64_t watch(std::size_t kept);
  // See ChangeLog; nothing before watch().
  std::optional<std::uint64_t> changes(std::uint64_t from, std::size_t max,
                                       std::vector<Change>& out);
  // See Index.
  std::uint32_t ready_from(std::uint32_t from, std::size_t count, std::vector<ChunkHash>& hashes);

  void states(Hashes hashes, std::span<std::uint8_t> states);
  void generations(Hashes hashes, std::span<std::uint64_t> generations);

  // Without pages: a whole request of a simulation. Chunks that are there are used, the others are
  // stored at once. Requires: no pool.
  Hits access(Hashes hashes);
  // Without pages: stores the absent ones of hashes[first:]; how many got room. Requires: no pool.
  std::size_t insert(Hashes hashes, std::size_t first);

  [[nodiscard]] std::size_t capacity() const noexcept { return index_->capacity(); }
  [[nodiscard]] bool has_pool() const noexcept { return pool_ != nullptr; }
  [[nodiscard]] const std::shared_ptr<mem::PagePool>& pool() const noexcept { return pool_; }
  [[nodiscard]] CacheStats stats();

 private:
  class PoolPages;

  ChunkCache(std::shared_ptr<mem::PagePool> pool, Clock clock);

  void expire();
  void release_pages(const Holder& holder);
  void lease_pages(Holder& holder);
  Reservation keep(Holder holder, Reservation reservation);

  const std::shared_ptr<mem::PagePool> pool_;  // owners: this cache, Python's PagePool and views
  const Clock clock_;
  std::unique_ptr<PageSource> pages_;

  std::mutex mutex_;  // guards what follows
  std::unique_ptr<ChangeLog> log_;
  std::unique_ptr<Index> index_;
  Holders holders_;
  std::uint64_t leases_expired_ = 0, reservations_expired_ = 0;
  std::uint64_t clears_ = 0;
  std::vector<ChunkRef> refs_;  // of simulations; kept for its memory
  std::vector<std::uint32_t> indices_;
};

}  // namespace kvferry::cache
