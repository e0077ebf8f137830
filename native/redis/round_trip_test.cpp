#include "redis/round_trip.hpp"

#include <gtest/gtest.h>

namespace kvferry::redis {
namespace {

constexpr Nanos kNear = 100'000;

TEST(RoundTrip, TheShortestAnswerCounts) {
  RoundTrip trip;
  EXPECT_EQ(trip.shortest(), 0);
  for (const Nanos took : {kMilli, 3 * kNear, kNear, kMilli, 2 * kNear}) trip.note(took);
  EXPECT_EQ(trip.shortest(), kNear);
}

TEST(RoundTrip, AServerThatMovedAwayIsSeenThere) {
  RoundTrip trip;
  trip.note(kNear);
  for (const Nanos far : {20 * kMilli, 50 * kMilli, 200 * kMilli}) {
    const Nanos before = trip.shortest();
    for (int i = 1; i < RoundTrip::kInARow; ++i) trip.note(far + i);
    EXPECT_EQ(trip.shortest(), before) << "it may have been busy";
    trip.note(far + kMilli);
    EXPECT_EQ(trip.shortest(), far + 1) << "the shortest since it is there";
  }
  trip.note(kNear);
  EXPECT_EQ(trip.shortest(), kNear) << "and when it comes back";
}

TEST(RoundTrip, ABusyServerStaysWhereItIs) {
  RoundTrip trip;
  trip.note(kNear);
  for (int i = 0; i < 1000; ++i) {
    trip.note(RoundTrip::kLong - 1);  // each of them late
    for (int j = 1; j < RoundTrip::kInARow; ++j) trip.note(kSecond);
    trip.note(kNear + i);
    EXPECT_EQ(trip.shortest(), kNear);
  }
}

TEST(RoundTrip, WhatValuesOfOursExplainIsNoMove) {
  constexpr Nanos kServed = 8 * kMilli;
  RoundTrip trip;
  trip.note(kNear);
  for (int i = 0; i < 1000; ++i) trip.note(kServed + RoundTrip::kLong - 1, kServed);
  EXPECT_EQ(trip.shortest(), kNear);
  const Nanos away = kServed + RoundTrip::kLong;
  for (int i = 0; i < RoundTrip::kInARow; ++i) {
    EXPECT_EQ(trip.shortest(), kNear);
    trip.note(away - 1, kServed);  // between answers that do say something
    trip.note(away, kServed);
  }
  EXPECT_EQ(trip.shortest(), away);
}

TEST(RoundTrip, ALittleFartherIsNoMove) {
  RoundTrip trip;
  trip.note(20 * kMilli);
  for (int i = 0; i < 100; ++i) trip.note(40 * kMilli - 1);
  EXPECT_EQ(trip.shortest(), 20 * kMilli);
}

}  // namespace
}  // namespace kvferry::redis
