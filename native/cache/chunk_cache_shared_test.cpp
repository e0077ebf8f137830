// Caches over one pool, and over the pages of a cache that ended.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "cache/chunk_cache.hpp"
#include "cache/test_requests.hpp"
#include "mem/test_segment.hpp"

namespace kvferry::cache {
namespace {

constexpr std::size_t kPageBytes = 4096;

std::unique_ptr<ChunkCache> make_cache(std::shared_ptr<mem::PagePool> pool) {
  return std::move(*ChunkCache::create(pool->stats().pages_count, "LRU", true, pool));
}

std::size_t store(ChunkCache& cache, Hashes hashes) {
  const auto reserved = cache.reserve(hashes, 0, kSecond);
  return *cache.commit(reserved.id, {});
}

TEST(CachesOverOnePool, EachEvictsItsOwnAndShedsTheRest) {
  const std::shared_ptr<mem::PagePool> pool = std::move(*mem::PagePool::create(64, 4));
  const auto first = make_cache(pool), second = make_cache(pool);
  EXPECT_EQ(store(*first, run(1, 3)), 3u);
  EXPECT_EQ(store(*second, run(11, 1)), 1u);
  // The pool is empty: the second has one chunk to give, the first keeps its three.
  const auto reserved = second->reserve(run(21, 3), 0, kSecond);
  EXPECT_EQ(reserved.pages.size(), 1u);
  EXPECT_EQ(reserved.shed, 2u);
  EXPECT_EQ(first->lookup(run(1, 3)).ready, 3u);
  EXPECT_EQ(first->stats().index.evictions, 0u);
  EXPECT_EQ(second->stats().index.evictions, 1u);
  EXPECT_EQ(*second->commit(reserved.id, {}), 1u);
  // A cache that has nothing sheds all of it.
  const auto third = make_cache(pool);
  EXPECT_EQ(third->reserve(run(31, 2), 0, kSecond).shed, 2u);
  // What one gives back is for whoever comes.
  EXPECT_EQ(first->evict(2).size(), 2u);
  EXPECT_EQ(store(*third, run(31, 3)), 2u);
}

TEST(CachesOverOnePool, TheSameHashIsAnotherChunkInAnotherCache) {
  const std::shared_ptr<mem::PagePool> pool = std::move(*mem::PagePool::create(64, 4));
  const auto first = make_cache(pool), second = make_cache(pool);
  store(*first, run(1, 2));
  EXPECT_EQ(second->lookup(run(1, 2)).ready, 0u);
  store(*second, run(1, 2));
  const auto one = first->acquire(run(1, 2), kSecond), two = second->acquire(run(1, 2), kSecond);
  for (const auto page : one.pages) EXPECT_EQ(std::ranges::count(two.pages, page), 0);
  first->clear();
  EXPECT_EQ(second->lookup(run(1, 2)).ready, 2u);
  EXPECT_TRUE(first->release(one.id) && second->release(two.id));
  EXPECT_EQ(pool->stats().free_count, 2u);
}

TEST(CachesOverOnePool, APoolThatShrinksTakesNoChunk) {
  const mem::TestPath path;
  std::shared_ptr<mem::SharedSegment> segment =
      std::move(*mem::SharedSegment::create(path.text, 4 * kPageBytes));
  const std::shared_ptr<mem::PagePool> pool =
      std::move(*mem::PagePool::over(segment, kPageBytes, 4));
  const auto cache = make_cache(pool);
  EXPECT_EQ(cache->reserve(run(1, 1), 0, kSecond).shed, 1u) << "nothing is granted";
  ASSERT_EQ(pool->grow(3).count, 3u);
  EXPECT_EQ(store(*cache, run(1, 2)), 2u);
  EXPECT_EQ(pool->shrink(4).count, 1u);
  EXPECT_EQ(cache->lookup(run(1, 2)).ready, 2u);
  EXPECT_EQ(cache->evict(1).size(), 1u);
  EXPECT_EQ(pool->shrink(4).count, 1u);
  EXPECT_EQ(path.backed_bytes(), kPageBytes);
  EXPECT_EQ(store(*cache, run(5, 1)), 1u) << "in the place of the last";
}

TEST(ChunkCacheRestart, ChunksAndTheirBytesComeBack) {
  const mem::TestPath path;
  std::vector<Resident> list;
  {
    std::shared_ptr<mem::SharedSegment> segment =
        std::move(*mem::SharedSegment::create(path.text, 8 * kPageBytes));
    const std::shared_ptr<mem::PagePool> pool =
        std::move(*mem::PagePool::over(segment, kPageBytes, 8));
    ASSERT_EQ(pool->grow(8).count, 8u);
    const auto cache = make_cache(pool);
    store(*cache, run(1, 4));
    store(*cache, Request{1, 2, 7});
    list = cache->residents();
    for (const auto& chunk : list) {
      const MutableBytes page = *pool->bytes(mem::PageHandle::unpack(chunk.page));
      std::memcpy(page.data(), &chunk.hash, kHashBytes);
    }
    segment->keep(true);
  }
  ASSERT_EQ(list.size(), 5u);
  std::shared_ptr<mem::SharedSegment> segment =
      std::move(*mem::SharedSegment::open(path.text, 8 * kPageBytes));
  const std::shared_ptr<mem::PagePool> pool =
      std::move(*mem::PagePool::over(segment, kPageBytes, 8));
  for (auto& chunk : list) {
    chunk.page = (*pool->claim(mem::PageHandle::unpack(chunk.page).index)).packed();
  }
  ASSERT_TRUE(pool->trim().has_value());
  EXPECT_EQ(path.backed_bytes(), 5 * kPageBytes);
  const auto cache = make_cache(pool);
  EXPECT_EQ(*cache->adopt(list), 5u);
  for (const Request& request : {run(1, 4), Request{1, 2, 7}}) {
    const Hashes hashes = request;
    const auto lease = cache->acquire(hashes, kSecond);
    ASSERT_EQ(lease.pages.size(), hashes.size());
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const MutableBytes page = *pool->bytes(mem::PageHandle::unpack(lease.pages[i]));
      EXPECT_EQ(ChunkHash::load(page.data()), hashes[i]);
    }
    EXPECT_TRUE(cache->release(lease.id));
  }
  EXPECT_EQ(cache->clear(), 5u);
  EXPECT_EQ(pool->stats().free_count, 5u) << "the pages are the cache's";
}

TEST(ChunkCacheRestart, RefusesPagesThatAreNotTheCallers) {
  const std::shared_ptr<mem::PagePool> pool = std::move(*mem::PagePool::create(64, 4));
  const auto cache = make_cache(pool);
  const std::uint64_t page = pool->allocate()->packed();
  const std::vector<std::vector<Resident>> wrong{
      {{hash_of(1), kNone, page}, {hash_of(2), 0, page}},
      {{hash_of(1), kNone, page + 1}},
      {{hash_of(1), 0, page}},
      {{hash_of(1), 7, page}},
  };
  for (const auto& list : wrong) {
    const auto adopted = cache->adopt(list);
    ASSERT_FALSE(adopted.has_value());
    EXPECT_EQ(adopted.error().code, Errc::kInvalidArgument);
    EXPECT_EQ(cache->stats().index.ready, 0u);
  }
  const std::vector<Resident> right{{hash_of(1), kNone, page}};
  EXPECT_EQ(*cache->adopt(right), 1u);
}

}  // namespace
}  // namespace kvferry::cache
