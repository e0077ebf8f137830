#include "directory/segment.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace kvferry::directory {
namespace {

using cache::ChunkHash;

ChunkHash numbered(std::uint64_t number) { return {number, ~number}; }

bool add(Segment& segment, std::uint64_t number, Slot slot) {
  return segment.add(numbered(number), numbered(number).mixed(), slot);
}

bool remove(Segment& segment, std::uint64_t number, Slot slot) {
  return segment.remove(numbered(number), numbered(number).mixed(), slot);
}

std::set<Slot> kept(const Segment& segment, const ChunkHash& hash, std::size_t words = 64) {
  std::vector<std::uint64_t> mask(words, ~std::uint64_t{0});
  segment.keep(hash, hash.mixed(), mask);
  std::set<Slot> slots;
  for (Slot slot = 0; slot < 64 * words; ++slot) {
    if ((mask[slot / 64] >> slot % 64 & 1) != 0) slots.insert(slot);
  }
  return slots;
}

TEST(Segment, KnowsTheHoldersThatSetsWouldKnow) {
  Segment segment;
  std::map<std::uint64_t, std::set<Slot>> model;
  std::mt19937_64 random(7);
  constexpr std::array<Slot, 9> kSlots{0, 1, 2, 63, 64, 300, 301, 2'000, kSlotsMax - 1};
  for (int step = 0; step < 200'000; ++step) {
    // It fills for a while and empties for a while, so that cells grow and shrink.
    const bool fills = step / 20'000 % 2 == 0;
    // The far slots come late: bitmaps that are there already become wider.
    const std::size_t slots = step < 60'000 ? 5 : kSlots.size();
    const std::uint64_t number = random() % 1'500;
    const Slot slot = kSlots[random() % slots];
    if (random() % 5'000 == 0) {
      std::size_t held = 0;
      for (auto& [_, holders] : model) held += holders.erase(slot);
      ASSERT_EQ(segment.forget(slot), held);
    } else if ((random() % 4 == 0) != fills) {
      ASSERT_EQ(add(segment, number, slot), model[number].insert(slot).second);
    } else {
      ASSERT_EQ(remove(segment, number, slot), model[number].erase(slot) == 1);
    }
    if (step % 8 == 0) {
      ASSERT_EQ(kept(segment, numbered(number)), model[number]);
    }
    ASSERT_EQ(segment.holds(numbered(number), numbered(number).mixed(), slot),
              model[number].contains(slot));
  }
}

TEST(Segment, AMaskOfFewWordsLosesNothingOfItsOwn) {
  Segment segment;
  for (const Slot slot : {3u, 70u, 500u}) add(segment, 1, slot);
  add(segment, 2, 500);
  EXPECT_EQ(kept(segment, numbered(1), 2), (std::set<Slot>{3, 70}));
  EXPECT_EQ(kept(segment, numbered(2), 2), std::set<Slot>{});
}

TEST(Segment, HalvesOfAHashAreNotAHash) {
  Segment segment;
  segment.add({1, 2}, ChunkHash{1, 2}.mixed(), 5);
  EXPECT_TRUE(kept(segment, {2, 1}).empty());
  EXPECT_TRUE(kept(segment, {1, 1}).empty());
  EXPECT_EQ(kept(segment, {1, 2}), std::set<Slot>{5});
}

TEST(Segment, TheHashOfZerosIsNeverHeld) {
  Segment segment;
  EXPECT_FALSE(segment.add({}, ChunkHash{}.mixed(), 1));
  add(segment, 9, 1);
  EXPECT_TRUE(kept(segment, {}).empty());
}

TEST(Segment, TakesFewBytesForAnEntryAndGivesThemBack) {
  Segment segment;
  const std::size_t empty = segment.memory_bytes();
  std::uint64_t next = 0;
  for (const std::uint64_t chunks : {10'000u, 17'000u, 40'000u, 100'000u}) {
    while (next < chunks) add(segment, next++, 0);
    EXPECT_LE(segment.memory_bytes(), 40 * chunks) << chunks;
  }
  for (const Slot slots : {2u, 3u, 4u, 256u}) {
    for (std::uint64_t number = 0; number < next; ++number) add(segment, number, slots - 1);
    if (slots < 256) {
      EXPECT_LE(segment.memory_bytes(), 64 * next * slots) << slots;
    }
  }
  for (const Slot slot : {0u, 1u, 2u, 3u, 255u}) segment.forget(slot);
  EXPECT_EQ(segment.memory_bytes(), empty);
}

}  // namespace
}  // namespace kvferry::directory
