// Liveness without a connection, on a clock that is a number.
#include "redis/liveness.hpp"

#include <gtest/gtest.h>

namespace kvferry::redis {
namespace {

using Action = Liveness::Action;

constexpr Nanos kStall = 800;
constexpr Nanos kPing = 5000;
constexpr Nanos kNow = 1'000'000;
constexpr Liveness::Load kIdle{
    .busy = false, .draining = false, .sends_values = false, .suspected_at = 0};
constexpr Liveness::Load kBusy{
    .busy = true, .draining = false, .sends_values = false, .suspected_at = 0};
constexpr Liveness::Load kDraining{
    .busy = true, .draining = true, .sends_values = false, .suspected_at = 0};
constexpr Liveness::Load kSending{
    .busy = true, .draining = false, .sends_values = true, .suspected_at = 0};

struct Up : Liveness {
  Up() : Liveness(kStall, kPing) { up(kNow); }
  void expect(const Load& load, Nanos now, Action action, Nanos next) const {
    const Decision decision = decide(load, now);
    EXPECT_EQ(decision.action, action) << "at " << now - kNow;
    EXPECT_EQ(decision.next - kNow, next - kNow);
  }
};

TEST(Liveness, ASilentServerIsAskedNowAndThen) {
  Up one;
  one.expect(kIdle, kNow, Action::kWait, kNow + kPing);
  one.expect(kIdle, kNow + kPing, Action::kPing, kNow + kPing + kStall);
  one.pinged(kNow + kPing);
  EXPECT_TRUE(one.probing());
  one.expect(kBusy, kNow + kPing + 1, Action::kWait, kNow + kPing + kStall);
  one.expect(kBusy, kNow + kPing + kStall, Action::kCheckStall, kNow + kPing + 2 * kStall);
  EXPECT_EQ(one.received(kNow + kPing + 30)->time, 30);
  EXPECT_FALSE(one.probing());
}

TEST(Liveness, AnotherConnectionsSilenceIsAReasonToAskAtOnce) {
  Up one;
  Liveness::Load suspected = kIdle;
  suspected.suspected_at = kNow + 5;
  one.expect(suspected, kNow + 5, Action::kPing, kNow + 5 + kStall);
  one.progressed(kNow + 6);
  one.expect(suspected, kNow + 7, Action::kWait, kNow + 6 + kPing);
}

TEST(Liveness, AServerOfUnknownDistanceIsAskedWhenItHasNothingElseToDo) {
  constexpr Nanos kFirst = 10 * kMilli;
  Liveness one(kSecond, 5 * kSecond);
  one.up(kNow);
  Liveness::Load load = kIdle;
  load.unmeasured = true;
  const auto expect = [&](Nanos now, Action action, Nanos next) {
    const auto decision = one.decide(load, kNow + now);
    EXPECT_EQ(decision.action, action) << "at " << now;
    EXPECT_EQ(decision.next - kNow, next) << "at " << now;
  };
  expect(0, Action::kWait, kFirst);
  load.beside_values = true;
  expect(kFirst, Action::kWait, 2 * kFirst);
  load.beside_values = false;
  expect(kFirst + 5, Action::kMeasure, kFirst + 5 + kSecond);
  one.measured(kNow + kFirst + 5);
  EXPECT_FALSE(one.probing()) << "work may follow";
  const auto took = one.received(kNow + kFirst + 9);
  ASSERT_TRUE(took);
  EXPECT_EQ(took->time, 4);
  EXPECT_FALSE(took->at_most);
  expect(2 * kFirst, Action::kWait, 3 * kFirst + 5);
  expect(3 * kFirst + 5, Action::kMeasure, 3 * kFirst + 5 + kSecond);
  load.unmeasured = false;
  expect(3 * kFirst + 5, Action::kWait, kFirst + 9 + 5 * kSecond);
  load.unmeasured = true;
  for (int n = 0; n < 100; ++n) one.measured(kNow);
  (void)one.received(kNow);
  expect(0, Action::kWait, kSecond);
}

TEST(Liveness, TheWayIsMeasuredOnlyWhereNothingElseWasAsked) {
  Up one;
  EXPECT_EQ(one.received(kNow + 1), std::nullopt);
  one.began(kNow + 10, true);
  EXPECT_EQ(one.received(kNow + 14)->time, 4);
  EXPECT_EQ(one.received(kNow + 15), std::nullopt) << "the rest of the answer";
  one.began(kNow + 20, false);
  EXPECT_EQ(one.received(kNow + 24), std::nullopt) << "a SET is answered when its value is there";
  one.began(kNow + 30, true);
  one.ended();
  EXPECT_EQ(one.received(kNow + 40), std::nullopt) << "it was another connection";
}

TEST(Liveness, TheWayIsNoLongerThanFromTheEndOfAValueToItsAnswer) {
  Up one;
  one.began(kNow, false);
  one.ends(1000);
  one.sent(kNow + 10, 999);
  EXPECT_EQ(one.received(kNow + 11), std::nullopt) << "an answer before the end";
  one.began(kNow + 20, false);
  one.ends(2000);
  one.sent(kNow + 30, 1500);
  one.sent(kNow + 40, 2000);
  one.sent(kNow + 50, 3000);  // what is behind it
  const auto took = one.received(kNow + 47);
  ASSERT_TRUE(took);
  EXPECT_EQ(took->time, 7);
  EXPECT_TRUE(took->at_most);
  one.sent(kNow + 60, 4000);
  EXPECT_EQ(one.received(kNow + 61), std::nullopt) << "others were on their way before";
}

TEST(Liveness, DeadlinesComeBeforeAStall) {
  Up one;
  one.accepted(kNow + 300);
  one.accepted(kNow + 500);
  EXPECT_FALSE(one.deadline_passed(kNow + 299));
  EXPECT_TRUE(one.deadline_passed(kNow + 300));
  one.expect(kBusy, kNow, Action::kWait, kNow + 300);
  one.released(kNow + 500, false, kNow + 300);
  one.expect(kBusy, kNow + 300, Action::kWait, kNow + 500);
}

TEST(Liveness, WhatIsToBeDrainedHasALimitOfItsOwn) {
  Up one;
  one.released(kNever, true, kNow + 100);
  one.sent(kNow + 200, 0);
  one.expect(kDraining, kNow + 200, Action::kWait, kNow + 100 + kStall);
  EXPECT_FALSE(one.drains_too_long(kNow + 99 + kStall));
  EXPECT_TRUE(one.drains_too_long(kNow + 100 + kStall));
}

TEST(Liveness, ASlowLinkThatStillSendsIsNoStall) {
  Up one;
  one.expect(kSending, kNow, Action::kWait, kNow + kStall / 8);
  one.expect(kSending, kNow + kStall / 8, Action::kLookAtUnsent, kNow + kStall);
  one.note_unsent(5000);
  one.expect(kSending, kNow + kStall / 8, Action::kWait, kNow + kStall);
  one.expect(kSending, kNow + kStall, Action::kCheckStall, kNow + 2 * kStall);
  EXPECT_TRUE(one.still_sends(4000, kNow + kStall));
  EXPECT_TRUE(one.progressed_at(kNow + kStall));
  EXPECT_FALSE(one.still_sends(4000, kNow + 2 * kStall)) << "none has left since";
  EXPECT_FALSE(one.progressed_at(kNow + 2 * kStall));
}

TEST(Liveness, AThreadThatSleptHasNotLookedAndTrustsWhatIsThere) {
  Up one;
  EXPECT_TRUE(one.still_sends(1, kNow + kStall));
  one.sent(kNow + kStall + 1, 0);
  EXPECT_FALSE(one.still_sends(0, kNow + 3 * kStall)) << "nothing is on its way";
}

}  // namespace
}  // namespace kvferry::redis
