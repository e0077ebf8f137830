#include "mem/block_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace kvferry::mem {
namespace {

std::vector<std::byte> numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

void run(const std::vector<Copy>& copies) { copy_many(copies, 1); }

// Two regions of 6 blocks: 8 bytes a block; and 2 rows of 4 bytes, interleaved with a neighbour.
BlockMap two(std::vector<std::byte>& memory) {
  auto map = BlockMap::open(
      {{.memory = memory, .offset_bytes = 3, .block_stride_bytes = 10, .row_bytes = 8},
       {.memory = memory,
        .offset_bytes = 100,
        .block_stride_bytes = 16,
        .rows = 2,
        .row_stride_bytes = 8,
        .row_bytes = 4}},
      6);
  EXPECT_TRUE(map);
  return *map;
}

TEST(BlockMap, ABufferHasRegionsThenBlocksThenRows) {
  auto memory = numbered(200);
  const BlockMap map = two(memory);
  ASSERT_EQ(map.block_bytes(), 16U);
  const std::vector<std::int64_t> blocks{4, 1};
  std::vector<std::byte> buffer(32);
  std::vector<Copy> copies;
  ASSERT_TRUE(map.plan(blocks, buffer, true, 0, 2, copies));
  run(copies);
  std::vector<std::byte> expected;
  const auto take = [&](std::size_t from, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) expected.push_back(memory[from + i]);
  };
  take(43, 8);
  take(13, 8);
  take(164, 4);
  take(172, 4);
  take(116, 4);
  take(124, 4);
  EXPECT_EQ(buffer, expected);
}

TEST(BlockMap, BackIntoBlocksAndNothingElseIsTouched) {
  auto memory = numbered(200);
  const auto before = memory;
  const BlockMap map = two(memory);
  const std::vector<std::int64_t> from{4, 1}, to{0, 5};
  std::vector<std::byte> buffer(32), again(32);
  std::vector<Copy> copies;
  ASSERT_TRUE(map.plan(from, buffer, true, 0, 2, copies));
  run(copies);
  copies.clear();
  ASSERT_TRUE(map.plan(to, buffer, false, 0, 2, copies));
  run(copies);
  copies.clear();
  ASSERT_TRUE(map.plan(to, again, true, 0, 2, copies));
  run(copies);
  EXPECT_EQ(again, buffer);
  std::size_t changed = 0;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const bool inside = (i >= 3 && i < 11) || (i >= 53 && i < 61) || (i >= 100 && i < 104) ||
                        (i >= 108 && i < 112) || (i >= 180 && i < 184) || (i >= 188 && i < 192);
    if (!inside) {
      ASSERT_EQ(memory[i], before[i]) << i;
    }
    changed += memory[i] != before[i];
  }
  EXPECT_GT(changed, 0U);
}

TEST(BlockMap, SomeRegionsLieWhereTheyDoInTheWhole) {
  auto memory = numbered(200);
  const BlockMap map = two(memory);
  const std::vector<std::int64_t> blocks{2, 3};
  std::vector<std::byte> whole(32), parts(32);
  std::vector<Copy> copies;
  ASSERT_TRUE(map.plan(blocks, whole, true, 0, 2, copies));
  run(copies);
  copies.clear();
  ASSERT_TRUE(map.plan(blocks, parts, true, 1, 1, copies));
  run(copies);
  EXPECT_TRUE(std::all_of(parts.begin(), parts.begin() + 16,
                          [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_TRUE(std::equal(parts.begin() + 16, parts.end(), whole.begin() + 16));
  copies.clear();
  ASSERT_TRUE(map.plan(blocks, parts, true, 0, 1, copies));
  run(copies);
  EXPECT_EQ(parts, whole);
}

TEST(BlockMap, RunsThatFollowEachOtherAreOneCopy) {
  std::vector<std::byte> memory(64);
  const auto map = BlockMap::open({{.memory = memory, .block_stride_bytes = 8, .row_bytes = 8}}, 8);
  ASSERT_TRUE(map);
  const std::vector<std::int64_t> blocks{2, 3, 4, 7, 6};
  std::vector<std::byte> buffer(40);
  std::vector<Copy> copies;
  ASSERT_TRUE(map->plan(blocks, buffer, false, 0, 1, copies));
  ASSERT_EQ(copies.size(), 3U);
  EXPECT_EQ(copies[0].to.size(), 24U);
}

TEST(BlockMap, BlocksThatAreNotWantedStayAsTheyAre) {
  auto memory = numbered(200);
  const BlockMap map = two(memory);
  const std::vector<std::int64_t> from{4, 1}, to{-1, 5};
  std::vector<std::byte> buffer(32);
  std::vector<Copy> copies;
  EXPECT_FALSE(map.plan(to, buffer, true, 0, 2, copies));
  ASSERT_TRUE(map.plan(from, buffer, true, 0, 2, copies));
  run(copies);
  auto expected = memory;
  std::copy_n(expected.begin() + 13, 8, expected.begin() + 53);
  std::copy_n(expected.begin() + 116, 4, expected.begin() + 180);
  std::copy_n(expected.begin() + 124, 4, expected.begin() + 188);
  copies.clear();
  ASSERT_TRUE(map.plan(to, buffer, false, 0, 2, copies));
  run(copies);
  EXPECT_EQ(memory, expected);
}

TEST(BlockMap, RefusesWhatIsNotThere) {
  auto memory = numbered(200);
  const BlockMap map = two(memory);
  std::vector<std::byte> buffer(16), shorter(15);
  std::vector<Copy> copies;
  for (const std::int64_t block :
       {std::int64_t{-1}, std::int64_t{6}, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_FALSE(map.plan({&block, 1}, buffer, true, 0, 2, copies)) << block;
  }
  const std::int64_t block = 0;
  EXPECT_FALSE(map.plan({&block, 1}, shorter, true, 0, 2, copies));
  EXPECT_TRUE(copies.empty());
}

TEST(BlockMap, RefusesRegionsThatLeaveTheirMemory) {
  std::vector<std::byte> memory(64);
  constexpr auto kHuge = std::numeric_limits<std::size_t>::max();
  const BlockRegion good{.memory = memory, .block_stride_bytes = 8, .row_bytes = 8};
  EXPECT_TRUE(BlockMap::open({good}, 8));
  EXPECT_FALSE(BlockMap::open({good}, 9));
  EXPECT_FALSE(BlockMap::open({good}, 0));
  EXPECT_FALSE(BlockMap::open({good}, kHuge));
  EXPECT_FALSE(BlockMap::open({}, 8));
  const auto refused = [&](auto change) {
    BlockRegion bad = good;
    change(bad);
    EXPECT_FALSE(BlockMap::open({bad}, 8));
  };
  refused([](BlockRegion& r) { r.offset_bytes = 1; });
  refused([](BlockRegion& r) { r.offset_bytes = kHuge; });
  refused([](BlockRegion& r) { r.block_stride_bytes = 7; });
  refused([](BlockRegion& r) { r.block_stride_bytes = kHuge / 4; });
  refused([](BlockRegion& r) { r.row_bytes = 0; });
  refused([](BlockRegion& r) { r.rows = 0; });
  refused([](BlockRegion& r) { r.rows = 2; });
  refused([](BlockRegion& r) { r.rows = kHuge, r.row_stride_bytes = 8; });
}

}  // namespace
}  // namespace kvferry::mem
