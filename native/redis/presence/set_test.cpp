#include "redis/presence/set.hpp"

#include <gtest/gtest.h>

#include <random>
#include <unordered_set>

namespace kvferry::redis {
namespace {

TEST(PresenceSet, SaysWhatIsNew) {
  PresenceSet set;
  EXPECT_FALSE(set.contains(7));
  EXPECT_FALSE(set.erase(7));
  EXPECT_TRUE(set.insert(7));
  EXPECT_FALSE(set.insert(7));
  EXPECT_TRUE(set.contains(7));
  EXPECT_EQ(set.size(), 1u);
  EXPECT_TRUE(set.erase(7));
  EXPECT_FALSE(set.contains(7));
  EXPECT_EQ(set.size(), 0u);
}

// Hashes of few values share homes and run into each other, over the end of the table as well.
TEST(PresenceSet, AgreesWithAModelWhenHashesCollide) {
  std::minstd_rand random(1);
  PresenceSet set;
  std::unordered_set<std::uint64_t> model;
  for (int step = 0; step < 200'000; ++step) {
    const bool grows = step / 20'000 % 2 == 0;
    const std::uint64_t hash = (random() % 2 << 60) + random() % 900 + 1;
    if (random() % 10 < (grows ? 6u : 2u)) {
      EXPECT_EQ(set.insert(hash), model.insert(hash).second);
    } else {
      EXPECT_EQ(set.erase(hash), model.erase(hash) == 1);
    }
    const std::uint64_t other = (random() % 2 << 60) + random() % 900 + 1;
    ASSERT_EQ(set.contains(other), model.contains(other)) << step;
    ASSERT_EQ(set.size(), model.size());
  }
}

TEST(PresenceSet, TakesAndGivesBackMemory) {
  constexpr std::size_t kCount = 200'000;
  std::mt19937_64 random(2);
  std::vector<std::uint64_t> hashes(kCount);
  for (auto& hash : hashes) hash = random() | 1;
  PresenceSet set;
  for (const auto hash : hashes) set.insert(hash);
  EXPECT_EQ(set.size(), kCount);
  EXPECT_LE(set.memory_bytes(), kCount * 24);
  for (const auto hash : hashes) set.erase(hash);
  EXPECT_LE(set.memory_bytes(), kCount);
  for (const auto hash : hashes) set.insert(hash);
  set.clear();
  EXPECT_EQ(set.size(), 0u);
  EXPECT_EQ(set.memory_bytes(), 0u);
  EXPECT_FALSE(set.contains(hashes[0]));
}

}  // namespace
}  // namespace kvferry::redis
