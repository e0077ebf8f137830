#include "cache/chunk_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "cache/test_requests.hpp"

namespace kvferry::cache {
namespace {

Nanos fake_now = 0;
Nanos fake_clock() { return fake_now; }

struct Fixture {
  explicit Fixture(std::size_t capacity, std::size_t pages = 0) {
    fake_now = 1000;
    if (pages > 0) pool = std::move(*mem::PagePool::create(64, pages));
    cache = std::move(*ChunkCache::create(capacity, "LRU", true, pool, &fake_clock));
  }
  std::size_t free_pages() const { return pool->stats().free_count; }
  void store(Hashes hashes) {
    const auto reserved = cache->reserve(hashes, 0, 10);
    EXPECT_EQ(*cache->commit(reserved.id, {}), reserved.indices.size());
  }

  std::shared_ptr<mem::PagePool> pool;
  std::unique_ptr<ChunkCache> cache;
};

TEST(ChunkCache, PagesOfAReservationAreTheHoldersThenTheCaches) {
  Fixture f(4, 4);
  const auto reserved = f.cache->reserve(run(1, 3), 0, 10);
  EXPECT_EQ(reserved.indices.size(), 3u);
  EXPECT_EQ(std::set(reserved.pages.begin(), reserved.pages.end()).size(), 3u);
  EXPECT_EQ(f.free_pages(), 1u);
  EXPECT_EQ(*f.cache->commit(reserved.id, {}), 3u);
  const auto lease = f.cache->acquire(run(1, 3), 10);
  EXPECT_EQ(lease.pages, reserved.pages);
  EXPECT_TRUE(f.cache->release(lease.id));
  EXPECT_FALSE(f.cache->release(lease.id));
  EXPECT_EQ(f.cache->evict(9).size(), 3u);
  EXPECT_EQ(f.free_pages(), 4u);
}

TEST(ChunkCache, AnAbortedReservationGivesItsPagesBack) {
  Fixture f(4, 4);
  const auto reserved = f.cache->reserve(run(1, 3), 0, 10);
  EXPECT_TRUE(f.cache->abort(reserved.id));
  EXPECT_FALSE(f.cache->abort(reserved.id));
  EXPECT_EQ(*f.cache->commit(reserved.id, {}), 0u);
  EXPECT_EQ(f.free_pages(), 4u);
  EXPECT_EQ(f.cache->stats().index.writing, 0u);
}

TEST(ChunkCache, WhatIsCommittedWithALeaseStaysUntilThatEnds) {
  Fixture f(3, 3);
  f.store(run(1, 1));
  const auto reserved = f.cache->reserve(run(1, 3), 1, 10);
  const auto lease = f.cache->commit_leased(reserved.id, 10);
  EXPECT_EQ(lease.pages, reserved.pages);
  EXPECT_EQ(f.cache->lookup(run(1, 3)).ready, 3u);
  EXPECT_TRUE(f.cache->evict(9).empty()) << "children are leased, their parent has children";
  EXPECT_TRUE(f.cache->release(lease.id));
  EXPECT_EQ(f.cache->evict(9).size(), 3u);
  EXPECT_EQ(f.free_pages(), 3u);
  EXPECT_EQ(f.cache->commit_leased(reserved.id, 10).id, 0u) << "it is over";
}

TEST(ChunkCache, AnExpiredReservationLeavesButItsMemoryStaysTheHolders) {
  Fixture f(2, 2);
  const auto late = f.cache->reserve(run(1, 2), 0, 10);
  fake_now += 10;
  EXPECT_EQ(f.cache->lookup(run(1, 2)).writing, 0u);
  EXPECT_EQ(f.cache->stats().reservations_expired, 1u);
  EXPECT_EQ(f.cache->stats().expired_held, 1u);
  // The index has room, but the memory may still be written: nobody else gets it.
  EXPECT_EQ(f.cache->reserve(run(5, 2), 0, 10).shed, 2u);
  EXPECT_EQ(*f.cache->commit(late.id, {}), 0u);
  EXPECT_EQ(f.free_pages(), 2u);
  f.store(run(5, 2));
  EXPECT_EQ(f.cache->lookup(run(5, 2)).ready, 2u);
}

TEST(ChunkCache, AnExpiredLeaseProtectsMemoryButNotTheChunk) {
  Fixture f(2, 2);
  f.store(run(1, 2));
  const auto lease = f.cache->acquire(run(1, 2), 10);
  EXPECT_TRUE(f.cache->evict(2).empty());
  fake_now += 9;
  EXPECT_TRUE(f.cache->extend(lease.id, 10));
  fake_now += 9;
  EXPECT_TRUE(f.cache->evict(2).empty());
  fake_now += 1;
  EXPECT_FALSE(f.cache->extend(lease.id, 10));
  EXPECT_EQ(f.cache->evict(2).size(), 2u);
  EXPECT_EQ(f.free_pages(), 0u);
  EXPECT_FALSE(f.cache->release(lease.id));  // late, and still it ends the holder's right
  EXPECT_EQ(f.free_pages(), 2u);
  EXPECT_EQ(f.cache->stats().leases_expired, 1u);
}

TEST(ChunkCache, AHolderThatDiedIsRevoked) {
  Fixture f(4, 4);
  f.store(run(1, 1));
  const auto lease = f.cache->acquire(run(1, 1), 10);
  const auto reserved = f.cache->reserve(run(1, 3), 0, 100);
  fake_now += 50;
  EXPECT_TRUE(f.cache->revoke(lease.id));     // expired
  EXPECT_TRUE(f.cache->revoke(reserved.id));  // in force
  EXPECT_FALSE(f.cache->revoke(reserved.id));
  EXPECT_EQ(f.free_pages(), 3u);
  EXPECT_EQ(f.cache->stats().expired_held, 0u);
}

TEST(ChunkCache, ARemovedChunkKeepsItsMemoryForWhoeverLeasedIt) {
  Fixture f(2, 2);
  f.store(run(1, 2));
  const auto lease = f.cache->acquire(run(1, 2), 10);
  EXPECT_EQ(f.cache->clear(), 2u);
  EXPECT_EQ(f.cache->reserve(run(1, 2), 0, 10).shed, 2u);
  EXPECT_TRUE(f.cache->release(lease.id));
  EXPECT_EQ(f.free_pages(), 2u);
}

// Pages that stay taken are no reason to evict everything.
TEST(ChunkCache, AnExhaustedPoolDoesNotEmptyTheCache) {
  Fixture f(100, 100);
  f.store(run(1, 50));
  std::vector<mem::PageHandle> others(50);
  ASSERT_TRUE(f.pool->allocate_many(others));
  f.cache->acquire(run(1, 50), 1);  // expires, and goes on reading
  fake_now += 1;
  EXPECT_EQ(f.cache->reserve(run(1000, 20), 0, 10).shed, 20u);
  EXPECT_GE(f.cache->stats().index.ready, 40u);
}

TEST(ChunkCache, AnswersForAnotherNumberOfChunksAreRefused) {
  Fixture f(4);
  const auto reserved = f.cache->reserve(run(1, 3), 0, 10);
  const std::uint8_t two[] = {1, 1};
  EXPECT_EQ(f.cache->commit(reserved.id, two).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(*f.cache->commit(reserved.id, {}), 3u);
}

TEST(ChunkCache, WithoutPagesExpiredHoldersAreForgotten) {
  Fixture f(4);
  f.store(run(1, 2));
  const auto lease = f.cache->acquire(run(1, 2), 10);
  EXPECT_EQ(lease.pages, (std::vector<std::uint64_t>{0, 0}));
  fake_now += 10;
  EXPECT_EQ(f.cache->stats().expired_held, 0u);
  EXPECT_FALSE(f.cache->release(lease.id));
  EXPECT_EQ(f.cache->acquire(run(7, 1), 10).id, 0u);
}

TEST(ChunkCache, MoreCapacityThanPagesIsRefused) {
  auto pool = std::shared_ptr(std::move(*mem::PagePool::create(64, 3)));
  EXPECT_FALSE(ChunkCache::create(4, "LRU", true, pool).has_value());
}

TEST(ChunkCache, ItsEndGivesEveryPageBack) {
  Fixture f(4, 4);
  f.store(run(1, 2));
  f.cache->acquire(run(1, 2), 10);
  f.cache->reserve(run(1, 4), 0, 10);
  f.cache.reset();
  EXPECT_EQ(f.free_pages(), 4u);
}

TEST(ChunkCache, ASimulatedRequestCountsThenStores) {
  Fixture f(4);
  auto hits = f.cache->access(run(1, 3));
  EXPECT_EQ(hits.prefix + hits.block, 0u);
  hits = f.cache->access(Request{1, 2, 9, 3});
  EXPECT_EQ(hits.prefix, 2u);
  EXPECT_EQ(hits.block, 3u);
  EXPECT_EQ(f.cache->insert(run(20, 8), 6), 2u);
}

// Each thread stamps what it reserved and finds the stamp in what it leases.
TEST(ChunkCache, ThreadsNeverSeeOthersBytes) {
  auto pool = std::shared_ptr(std::move(*mem::PagePool::create(64, 24)));
  const auto cache = std::move(*ChunkCache::create(16, "S3-FIFO", true, pool));
  const auto bytes_of = [&](std::uint64_t page) {
    return *pool->bytes(mem::PageHandle::unpack(page));
  };
  std::atomic<int> faults{0};
  const auto work = [&](std::uint64_t thread) {
    for (std::uint64_t round = 0; round < 3000; ++round) {
      const std::uint64_t base = (round * 7 + thread * 3) % 11 * 10;
      const Request request = run(base, 4);
      const auto reserved = cache->reserve(request, 0, kSecond);
      for (std::size_t i = 0; i < reserved.pages.size(); ++i) {
        std::ranges::fill(bytes_of(reserved.pages[i]), std::byte(base + reserved.indices[i]));
      }
      if (!cache->commit(reserved.id, {})) ++faults;
      const auto lease = cache->acquire(request, kSecond);
      for (std::size_t i = 0; i < lease.pages.size(); ++i) {
        const auto bytes = bytes_of(lease.pages[i]);
        if (bytes.front() != std::byte(base + i) || bytes.back() != std::byte(base + i)) ++faults;
      }
      if (lease.id != 0 && !cache->release(lease.id)) ++faults;
    }
  };
  {
    std::jthread threads[] = {std::jthread(work, 1), std::jthread(work, 2), std::jthread(work, 3)};
  }
  EXPECT_EQ(faults, 0);
  EXPECT_EQ(pool->stats().free_count + cache->stats().index.ready, 24u);
}

}  // namespace
}  // namespace kvferry::cache
