#include "redis/presence/state.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvferry::redis {
namespace {

using NodeId = PresenceState::NodeId;

// "absent", "probable" or "unknown", for each key.
std::string look_up(const PresenceState& state, const std::vector<std::string_view>& keys) {
  std::vector<Presence> answers(keys.size());
  state.look_up(keys, answers);
  std::string text;
  for (const Presence answer : answers) {
    text += text.empty() ? "" : " ";
    text += answer == Presence::kUnknown  ? "unknown"
            : answer == Presence::kAbsent ? "absent"
                                          : "probable";
  }
  return text;
}

SlotSet slots_of(const std::vector<std::string_view>& keys) {
  SlotSet slots;
  for (const auto key : keys) slots.add(key_slot(key));
  return slots;
}

// A node that answers for these slots and has no keys.
NodeId synced(PresenceState& state, const SlotSet& slots) {
  const NodeId node = state.join();
  state.serves(node, slots);
  state.begin_snapshot(node);
  state.end_snapshot(node);
  return node;
}

PresenceState standalone(PresenceLimits limits = {}) {
  return PresenceState("kv:", false, limits, {1, 2});
}
SlotSet everything() {
  SlotSet set;
  set.add(0);
  return set;
}

TEST(PresenceState, ASnapshotMakesKeysKnown) {
  auto state = standalone();
  const NodeId node = state.join();
  EXPECT_FALSE(state.wants_snapshot(node));
  state.serves(node, everything());
  EXPECT_TRUE(state.wants_snapshot(node));
  state.begin_snapshot(node);
  state.found(node, "kv:a");
  state.found(node, "other");
  EXPECT_EQ(look_up(state, {"kv:a", "kv:b"}), "unknown unknown");
  state.end_snapshot(node);
  EXPECT_FALSE(state.wants_snapshot(node));
  EXPECT_EQ(look_up(state, {"kv:a", "kv:b", "other", "k"}), "probable absent unknown unknown");
  EXPECT_EQ(state.stats().keys, 1u);
  state.lost(node);
  EXPECT_EQ(look_up(state, {"kv:a", "kv:b"}), "unknown unknown");
}

TEST(PresenceState, ChangesAreUnknownUntilAnswered) {
  auto state = standalone();
  const NodeId node = synced(state, everything());
  state.changed(node, "kv:a");
  EXPECT_EQ(look_up(state, {"kv:a", "kv:b"}), "unknown absent");
  EXPECT_EQ(state.next_question(node), "kv:a");
  EXPECT_EQ(state.next_question(node), std::nullopt);
  state.answered(node, true);
  EXPECT_EQ(look_up(state, {"kv:a"}), "probable");
  state.changed(node, "kv:a");
  EXPECT_EQ(state.next_question(node), "kv:a");
  state.answered(node, false);
  EXPECT_EQ(look_up(state, {"kv:a"}), "absent");
}

TEST(PresenceState, AnAnswerToAnEarlierQuestionDoesNotCount) {
  auto state = standalone();
  const NodeId node = synced(state, everything());
  state.changed(node, "kv:a");
  EXPECT_EQ(state.next_question(node), "kv:a");
  EXPECT_FALSE(state.wrote("kv:a"));  // after the question was sent
  state.answered(node, false);
  EXPECT_EQ(look_up(state, {"kv:a"}), "unknown");
  EXPECT_EQ(state.next_question(node), "kv:a");
  state.answered(node, true);
  EXPECT_EQ(look_up(state, {"kv:a"}), "probable");
}

TEST(PresenceState, OurWritesAreUnknownAtOnce) {
  auto state = standalone();
  EXPECT_FALSE(state.wrote("kv:a"));  // no snapshot has begun: the next one will see it
  const NodeId node = state.join();
  state.serves(node, everything());
  state.begin_snapshot(node);
  EXPECT_TRUE(state.wrote("kv:b"));
  EXPECT_FALSE(state.wrote("other"));
  state.end_snapshot(node);
  EXPECT_EQ(look_up(state, {"kv:a", "kv:b"}), "absent unknown");
}

TEST(PresenceState, AfterAFlushEverythingIsReadAgain) {
  auto state = standalone();
  const NodeId node = synced(state, everything());
  state.changed(node, "kv:a");
  EXPECT_EQ(state.next_question(node), "kv:a");
  state.flushed(node);
  EXPECT_EQ(look_up(state, {"kv:a", "kv:b"}), "unknown unknown");
  EXPECT_TRUE(state.wants_snapshot(node));
  state.begin_snapshot(node);
  state.changed(node, "kv:a");
  state.answered(node, true);  // to the question from before
  state.end_snapshot(node);
  EXPECT_EQ(look_up(state, {"kv:a", "kv:b"}), "unknown absent");
  EXPECT_EQ(state.stats().forgotten, 1u);
}

TEST(PresenceState, WhatTwoNodesServeIsUnknown) {
  PresenceState state("kv:", true, {}, {1, 2});
  const NodeId one = synced(state, slots_of({"kv:a", "kv:b"}));
  EXPECT_EQ(look_up(state, {"kv:a", "kv:b", "kv:c"}), "absent absent unknown");
  const NodeId other = synced(state, slots_of({"kv:b"}));
  EXPECT_EQ(look_up(state, {"kv:a", "kv:b"}), "absent unknown");
  state.changed(other, "kv:b");
  EXPECT_EQ(state.next_question(one), std::nullopt);
  EXPECT_EQ(state.next_question(other), std::nullopt);
  state.serves(one, slots_of({"kv:a"}));
  EXPECT_EQ(state.next_question(other), "kv:b");
  state.leave(one);
  EXPECT_EQ(look_up(state, {"kv:a", "kv:b"}), "unknown unknown");
  EXPECT_EQ(state.join(), one);  // ids are used again
}

TEST(PresenceState, ARedirectTakesTheSlotAway) {
  PresenceState state("kv:", true, {}, {1, 2});
  const NodeId node = synced(state, slots_of({"kv:a", "kv:b"}));
  state.changed(node, "kv:a");
  EXPECT_EQ(state.next_question(node), "kv:a");
  state.redirected(node);
  EXPECT_EQ(look_up(state, {"kv:a", "kv:b"}), "unknown absent");
  EXPECT_EQ(state.stats().changing, 0u);
  EXPECT_FALSE(state.wants_snapshot(node));
  state.serves(node, slots_of({"kv:a", "kv:b"}));
  EXPECT_TRUE(state.wants_snapshot(node));
}

TEST(PresenceState, LimitsForget) {
  auto state = standalone({.keys_max = 2, .changing_max = 2, .asked_max = 1});
  const NodeId node = synced(state, everything());
  state.changed(node, "kv:a");
  state.changed(node, "kv:b");
  EXPECT_TRUE(state.next_question(node).has_value());
  EXPECT_EQ(state.next_question(node), std::nullopt);  // one at a time
  state.changed(node, "kv:c");
  EXPECT_EQ(state.stats().changing, 0u);
  EXPECT_EQ(look_up(state, {"kv:a", "kv:d"}), "unknown unknown");
  EXPECT_FALSE(state.overflowed(node));
  state.begin_snapshot(node);
  for (const char* key : {"kv:1", "kv:1", "kv:2"}) state.found(node, key);
  EXPECT_FALSE(state.overflowed(node));
  state.found(node, "kv:3");
  EXPECT_TRUE(state.overflowed(node));
  state.end_snapshot(node);
  EXPECT_EQ(look_up(state, {"kv:1", "kv:d"}), "unknown unknown");
  EXPECT_EQ(state.stats().keys, 0u);
  state.changed(node, "kv:" + std::string(PresenceState::kKeyBytesMax, 'x'));  // no key of ours
}

}  // namespace
}  // namespace kvferry::redis
