#include "cache/known_chunks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace kvferry::cache {
namespace {

ChunkHash numbered(std::uint64_t number) { return {number, ~number}; }

TEST(KnownChunks, TheOldestAreForgottenFirst) {
  KnownChunks known(8);
  for (std::uint64_t n = 0; n < 8; ++n) known.add(numbered(n));
  known.add(numbered(0));  // it stays the oldest
  for (std::uint64_t n = 8; n < 12; ++n) known.add(numbered(n));
  for (std::uint64_t n = 0; n < 12; ++n) EXPECT_EQ(known.contains(numbered(n)), n >= 4) << n;
  EXPECT_EQ(known.size(), 8u);
}

TEST(KnownChunks, HalvesOfAHashAreNotAHash) {
  KnownChunks known(4);
  known.add({1, 2});
  EXPECT_FALSE(known.contains({2, 1}));
  EXPECT_FALSE(known.contains({1, 1}));
  EXPECT_TRUE(known.contains({1, 2}));
}

TEST(KnownChunks, KnowsWhatAListWouldKnow) {
  constexpr std::uint64_t kNumbers = 60;
  constexpr std::size_t kCapacity = 20;
  KnownChunks known(kCapacity);
  std::deque<std::uint64_t> model;
  std::mt19937_64 random(3);
  for (int step = 0; step < 50'000; ++step) {
    const std::uint64_t number = random() % kNumbers;
    const auto at = std::find(model.begin(), model.end(), number);
    if (random() % 3 == 0) {
      known.discard(numbered(number));
      if (at != model.end()) model.erase(at);
    } else {
      known.add(numbered(number));
      if (at == model.end()) model.push_back(number);
      if (model.size() > kCapacity) model.pop_front();
    }
    const std::uint64_t probe = random() % kNumbers;
    ASSERT_EQ(known.contains(numbered(probe)),
              std::find(model.begin(), model.end(), probe) != model.end());
    ASSERT_EQ(known.size(), model.size());
  }
}

}  // namespace
}  // namespace kvferry::cache
