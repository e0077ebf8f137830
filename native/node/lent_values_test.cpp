#include "node/lent_values.hpp"

#include <gtest/gtest.h>

#include <set>

#include "cache/test_requests.hpp"

namespace kvferry::node {
namespace {

using cache::run;

std::shared_ptr<cache::ChunkCache> cache_of(std::uint64_t first, std::size_t count) {
  auto pool = std::shared_ptr<mem::PagePool>(std::move(*mem::PagePool::create(64, 8)));
  std::shared_ptr<cache::ChunkCache> cache =
      std::move(*cache::ChunkCache::create(8, "LRU", true, pool));
  const auto reserved = cache->reserve(run(first, count), 0, 60 * kSecond);
  EXPECT_TRUE(cache->commit(reserved.id, {}));
  return cache;
}

class Heard final : public Changes {
 public:
  void changed(const std::vector<std::string>& keys) override { changes += keys.size(); }
  void cleared() override { ++clears; }

  std::size_t changes = 0;
  int clears = 0;
};

std::multiset<std::string> scanned(LentValues& values, std::size_t step) {
  std::multiset<std::string> seen;
  std::uint64_t cursor = 0;
  do {
    cursor = values.scan(cursor, step, 0, [&](std::string_view key) { seen.emplace(key); });
  } while (cursor != 0);
  return seen;
}

TEST(LentValues, EachCacheHasTheKeysOfItsPrefix) {
  LentValues values;
  EXPECT_EQ(values.hold("kvf:a:00", 0), nullptr);
  EXPECT_TRUE(scanned(values, 3).empty());
  ASSERT_TRUE(values.lend(cache_of(1, 3), "kvf:a:", 1, 64));
  ASSERT_TRUE(values.lend(cache_of(1, 2), "kvf:b:", 2, 64));
  ASSERT_TRUE(values.lend(cache_of(9, 4), "kvf:c:", 3, 64));
  const auto all = scanned(values, 2);
  EXPECT_EQ(all.size(), 9u);
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), 9u);
  for (const std::string& key : all) {
    EXPECT_NE(values.hold(key, 0), nullptr) << key;
    EXPECT_TRUE(values.facts(key, 0, true)) << key;
    std::string other = key;
    other[4] = 'd';
    EXPECT_EQ(values.hold(other, 0), nullptr) << other;
  }
  EXPECT_EQ(values.usage().keys, 9u);
  EXPECT_EQ(values.hold("", 0), nullptr);
  EXPECT_EQ(values.hold("kvf:", 0), nullptr);
  EXPECT_EQ(values.hold("zzz", 0), nullptr);
}

TEST(LentValues, ACacheThatIsRecalledIsGoneAndWhatIsHeldStays) {
  LentValues values;
  ASSERT_TRUE(values.lend(cache_of(1, 1), "kvf:a:", 1, 64));
  ASSERT_TRUE(values.lend(cache_of(5, 3), "kvf:b:", 1, 64));
  const std::string key = *scanned(values, 1).begin();
  const auto held = values.hold(key, 0);
  ASSERT_NE(held, nullptr);
  EXPECT_TRUE(values.recall("kvf:a:"));
  EXPECT_FALSE(values.recall("kvf:a:"));
  EXPECT_EQ(values.hold(key, 0), nullptr);
  EXPECT_EQ(held->size_bytes(), 128u);
  EXPECT_EQ(scanned(values, 2).size(), 3u);
}

TEST(LentValues, WhoeverWasStoppedLendsNothingUntilItIsMarkedAgain) {
  Heard heard;
  LentValues values(&heard);
  ASSERT_TRUE(values.lend(cache_of(1, 2), "kvf:a:", 1, 64));
  const std::string key = *scanned(values, 1).begin();
  EXPECT_EQ(values.hold("kvf:a:generation", 0), nullptr);
  EXPECT_FALSE(values.mark("kvf:b:", "1 x", monotonic_ns() + 60 * kSecond));
  ASSERT_TRUE(values.mark("kvf:a:", "1 x", monotonic_ns() + 60 * kSecond));
  EXPECT_NE(values.hold(key, 0), nullptr);
  ASSERT_TRUE(values.mark("kvf:a:", "2 y", monotonic_ns() - 1));
  const int before = heard.clears;
  EXPECT_EQ(values.hold(key, 0), nullptr);
  EXPECT_FALSE(values.facts(key, 0, true));
  const auto mark = values.hold("kvf:a:generation", 0);
  ASSERT_NE(mark, nullptr);
  EXPECT_EQ(as_text(mark->piece(0)), "2 y");
  ASSERT_TRUE(values.mark("kvf:a:", "2 y", monotonic_ns() + 60 * kSecond));
  EXPECT_NE(values.hold(key, 0), nullptr);
  EXPECT_EQ(heard.clears, before + 1) << "readers were told that nothing is there";
}

TEST(LentValues, PrefixesThatBeginAlikeAreRefused) {
  LentValues values;
  ASSERT_TRUE(values.lend(cache_of(1, 1), "kvf:a:", 1, 64));
  EXPECT_FALSE(values.lend(cache_of(1, 1), "kvf:a:", 1, 64));
  EXPECT_FALSE(values.lend(cache_of(1, 1), "kvf:", 1, 64));
  EXPECT_FALSE(values.lend(cache_of(1, 1), "kvf:a:b", 1, 64));
  EXPECT_FALSE(values.lend(cache_of(1, 1), "kvf:b:", 1, 65)) << "longer than a page";
}

TEST(LentValues, ReadersAreToldWhenACacheComesOrGoesAndOfWhatChangesInIt) {
  Heard heard;
  LentValues values(&heard);
  const auto cache = cache_of(1, 2);
  ASSERT_TRUE(values.lend(cache, "kvf:a:", 1, 64));
  EXPECT_EQ(heard.clears, 1) << "what was there before is told by nobody";
  cache->remove(run(2, 1));
  values.sweep(0);
  EXPECT_EQ(heard.changes, 1u);
  EXPECT_TRUE(values.recall("kvf:a:"));
  EXPECT_EQ(heard.clears, 2);
}

}  // namespace
}  // namespace kvferry::node
