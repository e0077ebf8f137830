#include "redis/presence/slots.hpp"

#include <gtest/gtest.h>

#include <string>

#include "base/test_names.hpp"

namespace kvferry::redis {
namespace {

// "0-2 7", or why there is none.
std::string own_slots(std::string_view nodes) {
  const auto slots = parse_own_slots(nodes);
  if (!slots) return std::string(name(slots.error().code));
  std::string out;
  std::size_t first = kSlotCount;
  for (std::size_t slot = 0; slot <= kSlotCount; ++slot) {
    const bool served = slot < kSlotCount && (*slots).contains(slot);
    if (served && first == kSlotCount) first = slot;
    if (served || first == kSlotCount) continue;
    out += (out.empty() ? "" : " ") + std::to_string(first);
    if (slot - 1 > first) out += "-" + std::to_string(slot - 1);
    first = kSlotCount;
  }
  return out;
}

const std::string kOther =
    "aa 10.0.0.2:6379@16379,name master - 0 1 2 connected 100-200 [5->-bb]\n";
const std::string kMine = "bb 10.0.0.1:6379@16379 myself,master - 0 0 1 connected";

TEST(PresenceSlots, OfTheNodeThatAnswers) {
  EXPECT_EQ(own_slots(kOther + kMine + " 0-99 300 16383\n"), "0-99 300 16383");
  EXPECT_EQ(own_slots(kMine + " 0-16383"), "0-16383");
  EXPECT_EQ(own_slots(kMine + "\r\n" + kOther), "");
}

TEST(PresenceSlots, WithoutThoseThatMove) {
  EXPECT_EQ(own_slots(kMine + " 0-9 [4->-aa] [77-<-aa]\n"), "0-3 5-9");
}

TEST(PresenceSlots, AReplicaServesNone) {
  EXPECT_EQ(own_slots("bb 10.0.0.1:1@2 myself,slave aa 0 0 1 connected\n" + kOther), "");
}

TEST(PresenceSlots, NonsenseIsRefused) {
  for (const std::string slots : {" 16384", " 5-4", " x", " 0-16384", " [x->-a]", " -1", " 1-x"}) {
    EXPECT_EQ(own_slots(kMine + slots), "protocol") << slots;
  }
  EXPECT_EQ(own_slots(""), "protocol");
  EXPECT_EQ(own_slots(kOther), "protocol");
}

TEST(PresenceSlots, ClusterState) {
  EXPECT_TRUE(cluster_is_up("cluster_enabled:1\r\ncluster_state:ok\r\ncluster_slots:1\r\n"));
  EXPECT_FALSE(cluster_is_up("cluster_state:fail\r\n"));
  EXPECT_FALSE(cluster_is_up(""));
}

TEST(PresenceSlots, SetsOfSlots) {
  SlotSet one;
  one.add(0);
  one.add(64);
  one.add(16383);
  SlotSet other;
  other.add(64);
  EXPECT_TRUE((one & other).contains(64));
  EXPECT_FALSE((one - other).contains(64));
  EXPECT_EQ((one - other) | other, one);
  EXPECT_TRUE((SlotSet::all() - SlotSet::all()).empty());
  std::vector<std::size_t> seen;
  one.for_each([&](std::size_t slot) { seen.push_back(slot); });
  EXPECT_EQ(seen, (std::vector<std::size_t>{0, 64, 16383}));
}

}  // namespace
}  // namespace kvferry::redis
