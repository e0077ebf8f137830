#include "redis/cluster/slot_map.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvferry::redis {
namespace {

Node node(std::string host, std::uint16_t port = 6379, std::string zone = "") {
  return {.endpoint = {.host = std::move(host), .port = port, .unix_path = {}},
          .zone = std::move(zone)};
}

SlotRange range(std::int64_t first, std::int64_t last, Node primary,
                std::vector<Node> replicas = {}) {
  return {
      .first = first, .last = last, .primary = std::move(primary), .replicas = std::move(replicas)};
}

SlotMap built(std::vector<SlotRange> ranges) {
  Result<SlotMap> map = SlotMap::build(std::move(ranges));
  EXPECT_TRUE(map) << map.error().context;
  return map ? *map : SlotMap{};
}

TEST(KeySlot, IsThatOfTheServers) {
  // Each number is the answer of CLUSTER KEYSLOT.
  const std::vector<std::pair<std::string_view, int>> cases = {
      {"123456789", 0x31c3},
      {"", 0},
      {"foo", 12182},
      {"bar", 5061},
      {"{user1000}.following", 3443},
      {"{user1000}.followers", 3443},
      {"user1000", 3443},
      {"foo{}{bar}", 8363},     // the first tag is empty: the whole key counts
      {"foo{{bar}}zap", 4015},  // the tag is "{bar"
      {"{bar", 4015},
      {"foo{bar}{zap}", 5061},  // the first tag
      {"foo}{bar}", 5061},
      {"foo{bar", 15278},
      {"{}", 15257},
      {std::string_view("\0\xff{\r\n}", 6), 5910},
  };
  for (const auto& [key, slot] : cases) EXPECT_EQ(key_slot(key), slot) << key;
}

TEST(SlotMap, NothingIsCoveredAtFirst) {
  for (const SlotMap& map : {SlotMap{}, built({})}) {
    EXPECT_EQ(map.covered(), 0u);
    EXPECT_EQ(map.shard_of(0), SlotMap::kNoShard);
    EXPECT_TRUE(map.shards().empty());
    EXPECT_EQ(map, SlotMap{});
  }
}

TEST(SlotMap, ThreeShards) {
  const SlotMap map = built(
      {range(10923, 16383, node("c")), range(0, 5460, node("a")), range(5461, 10922, node("b"))});
  EXPECT_EQ(map.covered(), kSlotCount);
  ASSERT_EQ(map.shards().size(), 3u);
  EXPECT_EQ(map.shards()[0].primary.endpoint.host, "a") << "not by lowest slot";
  const std::vector<std::pair<std::size_t, int>> owners = {{0, 0},     {5460, 0},  {5461, 1},
                                                           {10922, 1}, {10923, 2}, {16383, 2}};
  for (const auto& [slot, shard] : owners) EXPECT_EQ(map.shard_of(slot), shard) << slot;
  EXPECT_EQ(map.shard_of(kSlotCount), SlotMap::kNoShard);
  EXPECT_EQ(map.shard_of(SIZE_MAX), SlotMap::kNoShard);
}

TEST(SlotMap, AShardMayHaveManyRangesAndHoles) {
  const SlotMap map = built({range(0, 0, node("a"), {node("r2")}), range(2, 3, node("b")),
                             range(16383, 16383, node("a"), {node("r1"), node("r2")})});
  ASSERT_EQ(map.shards().size(), 2u);
  EXPECT_EQ(map.covered(), 4u);
  EXPECT_EQ(map.shard_of(16383), 0);
  EXPECT_EQ(map.shard_of(1), SlotMap::kNoShard);
  const std::vector<Node>& replicas = map.shards()[0].replicas;
  ASSERT_EQ(replicas.size(), 2u) << "a replica is there twice";
  EXPECT_EQ(replicas[0].endpoint.host, "r1");
}

TEST(SlotMap, PortsTellNodesOfOneHostApart) {
  const SlotMap map = built({range(0, 1, node("h", 7000), {node("h", 7001), node("h", 7000)}),
                             range(2, 3, node("h", 7001))});
  ASSERT_EQ(map.shards().size(), 2u);
  EXPECT_EQ(map.shards()[0].replicas.size(), 1u) << "the primary is no replica of itself";
}

TEST(SlotMap, EqualityIsAboutWhoServesWhat) {
  const auto ranges = [](std::string zone = "", std::uint16_t port = 1) {
    return std::vector{range(0, 99, node("a"), {node("r", 1, std::move(zone)), node("s", port)}),
                       range(100, 16383, node("b"))};
  };
  const SlotMap map = built(ranges());
  std::vector<SlotRange> shuffled = {range(50, 99, node("a"), {node("s", 1)}),
                                     range(100, 16383, node("b")),
                                     range(0, 49, node("a"), {node("s", 1), node("r", 1)})};
  EXPECT_EQ(map, built(shuffled));
  EXPECT_NE(map, built(ranges("az-1")));
  EXPECT_NE(map, built(ranges("", 2)));
  EXPECT_NE(map, SlotMap{});
  EXPECT_NE(map, built({range(0, 100, node("a"), {node("r", 1), node("s", 1)}),
                        range(101, 16383, node("b"))}));
  EXPECT_NE(map, built({range(0, 99, node("a"), {node("r", 1), node("s", 1)}),
                        range(100, 16383, node("c"))}));
}

TEST(SlotMap, WhatNoClusterCanMeanIsRefused) {
  const std::vector<std::pair<std::vector<SlotRange>, std::string>> cases = {
      {{range(-1, 5, node("a"))}, "slots -1 to 5"},
      {{range(5, 4, node("a"))}, "slots 5 to 4"},
      {{range(0, 16384, node("a"))}, "slots 0 to 16384"},
      {{range(INT64_MAX, INT64_MAX, node("a"))}, "which do not exist"},
      {{range(INT64_MIN, INT64_MAX, node("a"))}, "which do not exist"},
      {{range(0, 5, node("a")), range(5, 9, node("b"))}, "slot 5 from two primaries"},
      {{range(3, 4, node("b")), range(0, 9, node("a"))}, "slot 3 from two primaries"},
      {{range(7, 7, node("a")), range(7, 7, node("a"))}, "slot 7 from two primaries"},
  };
  for (const auto& [ranges, reason] : cases) {
    const Result<SlotMap> map = SlotMap::build(ranges);
    ASSERT_FALSE(map) << reason;
    EXPECT_EQ(map.error().code, Errc::kProtocol);
    EXPECT_NE(map.error().context.find(reason), std::string::npos) << map.error().context;
  }
}

TEST(SlotMap, NodesAreLimited) {
  std::vector<SlotRange> ranges;
  for (std::size_t shard = 0; shard < SlotMap::kShardsMax; ++shard) {
    const auto slot = static_cast<std::int64_t>(shard);
    ranges.push_back(range(slot, slot, node("n" + std::to_string(shard))));
  }
  EXPECT_EQ(built(ranges).shards().size(), SlotMap::kShardsMax);
  ranges.push_back(range(16000, 16000, node("one-more")));
  const Result<SlotMap> shards = SlotMap::build(std::move(ranges));
  ASSERT_FALSE(shards);
  EXPECT_EQ(shards.error().code, Errc::kCapacity);

  std::vector<Node> replicas;
  for (std::size_t index = 0; index <= SlotMap::kReplicasMax; ++index) {
    replicas.push_back(node("r" + std::to_string(index)));
  }
  EXPECT_FALSE(SlotMap::build({range(0, 1, node("a"), replicas)}));
  replicas.pop_back();
  EXPECT_EQ(built({range(0, 1, node("a"), replicas)}).shards()[0].replicas.size(),
            SlotMap::kReplicasMax);
}

}  // namespace
}  // namespace kvferry::redis
