#include "cache/change_log.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "cache/chunk_cache.hpp"
#include "cache/test_requests.hpp"

namespace kvferry::cache {
namespace {

std::vector<std::uint64_t> numbers(const std::vector<Change>& changes) {
  std::vector<std::uint64_t> all;
  for (const Change& change : changes) all.push_back(change.hash.low * 10 + change.ready);
  return all;
}

TEST(ChangeLog, AReaderGoesOnWhereItStopped) {
  ChangeLog log(4);
  std::vector<Change> seen;
  EXPECT_EQ(log.read(0, 9, seen), 0u);
  for (std::uint64_t i = 1; i <= 3; ++i) log.note(hash_of(i), i != 2);
  EXPECT_EQ(log.read(0, 2, seen), 2u);
  EXPECT_EQ(log.read(2, 9, seen), 3u);
  EXPECT_EQ(numbers(seen), (std::vector<std::uint64_t>{11, 20, 31}));
}

TEST(ChangeLog, AReaderThatFellBehindIsTold) {
  ChangeLog log(4);
  std::vector<Change> seen;
  for (std::uint64_t i = 0; i < 5; ++i) log.note(hash_of(i), true);
  EXPECT_EQ(log.read(0, 9, seen), std::nullopt);
  EXPECT_TRUE(seen.empty());
  EXPECT_EQ(log.read(1, 9, seen), 5u);
  EXPECT_EQ(seen.size(), 4u);
  EXPECT_EQ(log.read(6, 9, seen), std::nullopt) << "a number of another log";
}

TEST(ChangeLog, WhatItSaysIsWhatTheCacheHasWhateverHappens) {
  std::mt19937 random(7);
  auto pool = std::shared_ptr<mem::PagePool>(std::move(*mem::PagePool::create(64, 24)));
  const auto cache = std::move(*ChunkCache::create(24, "LRU", true, pool));
  std::uint64_t at = cache->watch(100'000);
  EXPECT_EQ(cache->watch(1), at) << "it keeps what it has";
  std::set<std::uint64_t> told;
  for (int step = 0; step < 3000; ++step) {
    const Request request = run(random() % 60, 1 + random() % 6);
    switch (random() % 8) {
      case 0:
        cache->remove(request);
        break;
      case 1:
        cache->evict(random() % 3);
        break;
      case 2:
        if (random() % 50 == 0) cache->clear();
        break;
      default:
        const auto reserved = cache->reserve(request, 0, kSecond);
        if (random() % 5 == 0) {
          cache->abort(reserved.id);
        } else {
          ASSERT_TRUE(cache->commit(reserved.id, {}));
        }
    }
    std::vector<Change> changes;
    at = *cache->changes(at, SIZE_MAX, changes);
    for (const Change& change : changes) {
      if (change.ready) {
        EXPECT_TRUE(told.insert(change.hash.low).second);
      } else {
        EXPECT_EQ(told.erase(change.hash.low), 1u);
      }
    }
    std::vector<ChunkHash> here;
    std::uint32_t slot = 0;
    do {
      slot = cache->ready_from(slot, 5, here);
    } while (slot != 0);
    std::set<std::uint64_t> ready;
    for (const ChunkHash& hash : here) EXPECT_TRUE(ready.insert(hash.low).second);
    ASSERT_EQ(told, ready) << step;
  }
}

}  // namespace
}  // namespace kvferry::cache
