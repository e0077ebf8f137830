#include "cache/ghosts.hpp"

#include <gtest/gtest.h>

#include "cache/evicted_memory.hpp"
#include "cache/sketch.hpp"
#include "cache/test_requests.hpp"

namespace kvferry::cache {
namespace {

TEST(Ghosts, AreTakenOnce) {
  Ghosts ghosts(4);
  ghosts.push(0, hash_of(1));
  ghosts.push(1, hash_of(2));
  EXPECT_EQ(ghosts.take(hash_of(3)), Ghosts::kNowhere);
  EXPECT_EQ(ghosts.take(hash_of(2)), 1);
  EXPECT_EQ(ghosts.take(hash_of(2)), Ghosts::kNowhere);
  EXPECT_EQ(ghosts.take(hash_of(1)), 0);
  EXPECT_EQ(ghosts.size(0) + ghosts.size(1), 0u);
}

TEST(Ghosts, TheOldestOfTheSameQueueMakesPlace) {
  Ghosts ghosts(3);
  ghosts.push(1, hash_of(9));
  for (std::uint64_t i = 0; i < 100; ++i) ghosts.push(0, hash_of(100 + i));
  EXPECT_EQ(ghosts.size(0), 2u);
  EXPECT_EQ(ghosts.take(hash_of(9)), 1);
  EXPECT_EQ(ghosts.take(hash_of(197)), Ghosts::kNowhere);
  EXPECT_EQ(ghosts.take(hash_of(198)), 0);
  EXPECT_EQ(ghosts.take(hash_of(199)), 0);
}

TEST(Ghosts, PushedAgainIsOneAndTheYoungest) {
  Ghosts ghosts(2);
  ghosts.push(0, hash_of(1));
  ghosts.push(0, hash_of(2));
  ghosts.push(1, hash_of(1));
  EXPECT_EQ(ghosts.size(0), 1u);
  EXPECT_EQ(ghosts.size(1), 1u);
  ghosts.push(1, hash_of(3));  // the oldest of its own queue goes, not the other
  EXPECT_EQ(ghosts.take(hash_of(1)), Ghosts::kNowhere);
  EXPECT_EQ(ghosts.take(hash_of(2)), 0);
}

TEST(EvictedMemory, RemembersUntilToldOrOverwritten) {
  EvictedMemory memory(1);  // one place for all
  EXPECT_FALSE(memory.remembers(hash_of(1)));
  memory.remember(hash_of(1));
  EXPECT_TRUE(memory.remembers(hash_of(1)));
  memory.forget(hash_of(2));
  EXPECT_TRUE(memory.remembers(hash_of(1)));
  memory.remember(hash_of(2));
  EXPECT_FALSE(memory.remembers(hash_of(1)));
  memory.forget(hash_of(2));
  EXPECT_FALSE(memory.remembers(hash_of(2)));
}

TEST(Sketch, NeverCountsLessThanWasSeen) {
  Sketch sketch(1000);
  for (std::uint64_t i = 0; i < 500; ++i) {
    for (std::uint64_t times = 0; times < i % 5; ++times) sketch.count(hash_of(i));
  }
  std::size_t exact = 0;
  for (std::uint64_t i = 0; i < 500; ++i) {
    const unsigned estimate = sketch.estimate(hash_of(i));
    // 1000 uses halve at most a tenth of the words.
    EXPECT_GE(estimate, i % 5 / 2);
    exact += estimate == i % 5;
  }
  EXPECT_GT(exact, 400u);
}

TEST(Sketch, ForgetsWhatIsOver) {
  Sketch sketch(100);
  for (int i = 0; i < 15; ++i) sketch.count(hash_of(1));
  EXPECT_EQ(sketch.estimate(hash_of(1)), Sketch::kCountMax);
  // Fifty rounds of halving, of other chunks.
  for (std::uint64_t i = 0; i < 50'000; ++i) sketch.count(hash_of(1000 + i % 7));
  EXPECT_LT(sketch.estimate(hash_of(1)), Sketch::kCountMax / 2);
}

}  // namespace
}  // namespace kvferry::cache
