#include "redis/stream_gate.hpp"

#include <gtest/gtest.h>

#include <string>

#include "base/bytes.hpp"
#include "redis/outbox.hpp"

namespace kvferry::redis {
namespace {

std::size_t enter_all(StreamGate& gate, std::size_t tries) {
  std::size_t entered = 0;
  for (std::size_t n = 0; n < tries; ++n) entered += gate.try_enter(Direction::kRead, 1) ? 1u : 0u;
  return entered;
}

TEST(StreamGate, AServerThatOnlySeemedFarHasNoMoreStreamsThanANearOne) {
  // One slow greeting allowed eight streams for ever, and small commands waited for all of them.
  StreamGate gate(8);
  gate.set_far(true);
  EXPECT_EQ(gate.limit(Direction::kRead), 8u);
  gate.set_far(false);
  EXPECT_EQ(gate.limit(Direction::kRead), StreamGate::kReadStreams);
  EXPECT_EQ(gate.limit(Direction::kWrite), StreamGate::kWriteStreams);
  Nanos now = 0;
  for (int value = 0; value < 20'000; ++value) {
    while (gate.try_enter(Direction::kRead, now)) {
    }
    const auto active = static_cast<Nanos>(gate.limit(Direction::kRead));
    now += 8 * kMilli / active;  // each stream more adds bandwidth
    (void)gate.completed(Direction::kRead, std::size_t{4} << 20, now);
    ASSERT_LE(gate.limit(Direction::kRead), StreamGate::kStreamsNearMax);
  }
}

TEST(StreamGate, IsInUseWhileAnyConnectionCarriesValues) {
  StreamGate gate(2);
  for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
    EXPECT_FALSE(gate.in_use());
    ASSERT_TRUE(gate.try_enter(direction, 1));
    EXPECT_TRUE(gate.in_use());
    gate.leave(direction, 2);
  }
  EXPECT_FALSE(gate.in_use());
}

TEST(StreamGate, SaysHowLongAServerMayBeBusyWithValues) {
  StreamGate gate(8);
  EXPECT_EQ(enter_all(gate, 2), 2u);
  EXPECT_EQ(gate.server_backlog(), 0) << "nobody knows yet how long they are";
  (void)gate.completed(Direction::kRead, 4'000'000, 2);
  EXPECT_EQ(gate.server_backlog(), 8 * kMilli) << "two of 4 MB at 1 GB/s";
  gate.leave(Direction::kRead, 3);
  EXPECT_EQ(gate.server_backlog(), 4 * kMilli);
  ASSERT_TRUE(gate.try_enter(Direction::kWrite, 4));
  (void)gate.completed(Direction::kWrite, 1'000'000, 5);
  EXPECT_EQ(gate.server_backlog(), 5 * kMilli);
}

TEST(StreamGate, FarAwayAllStream) {
  // Two carried 8 MB over eight connections that each begin with ten segments.
  StreamGate gate(8);
  gate.set_far(true);
  for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
    EXPECT_EQ(gate.limit(direction), 8u);
  }
  EXPECT_EQ(enter_all(gate, 9), 8u);
  gate.set_far(false);
  EXPECT_TRUE(gate.over_limit(Direction::kRead, 2));
}

TEST(StreamGate, CountsWhatAllStreamsCarry) {
  StreamGate gate(8);
  for (int n = 0; n < 3; ++n) gate.add_value(Direction::kRead);
  gate.add_value(Direction::kWrite);
  gate.remove_values(Direction::kRead);
  EXPECT_EQ(gate.values(Direction::kRead), 2u);
  gate.remove_values(Direction::kRead, 2);
  EXPECT_EQ(gate.values(Direction::kRead), 0u);
  EXPECT_EQ(gate.values(Direction::kWrite), 1u);
}

TEST(StreamGate, MoreStreamsWriteShortValuesToANearServerThanLongOnes) {
  StreamGate gate(8);
  Nanos now = 0;
  const auto write = [&](std::size_t bytes) {
    while (gate.try_enter(Direction::kWrite, now)) {
    }
    // Each stream more adds bandwidth.
    now += static_cast<Nanos>(bytes / (1 + gate.limit(Direction::kWrite)));
    (void)gate.completed(Direction::kWrite, bytes, now);
  };
  for (int value = 0; value < 50'000; ++value) write(256 * kKiB);
  EXPECT_EQ(gate.limit(Direction::kWrite), 8u);
  write(Outbox::kLargeBytes);
  EXPECT_EQ(gate.limit(Direction::kWrite), StreamGate::kStreamsNearMax);
  EXPECT_TRUE(gate.over_limit(Direction::kWrite, now));
}

TEST(StreamGate, StreamsAboveANewLimitEndOneByOne) {
  StreamGate gate(8);
  gate.set_far(true);
  EXPECT_EQ(enter_all(gate, 4), 4u);
  gate.set_far(false);
  EXPECT_TRUE(gate.over_limit(Direction::kRead, 2));
  gate.leave(Direction::kRead, 2);
  gate.leave(Direction::kRead, 2);
  EXPECT_FALSE(gate.over_limit(Direction::kRead, 2));
}

TEST(StreamGate, OneStreamWritesWhileSmallCommandsComeAndTheServerIsNear) {
  StreamGate gate(8);
  ASSERT_TRUE(gate.try_enter(Direction::kWrite, 1));
  ASSERT_TRUE(gate.try_enter(Direction::kWrite, 1));
  gate.note_small(2);
  EXPECT_TRUE(gate.over_limit(Direction::kWrite, 3));
  gate.leave(Direction::kWrite, 3);
  EXPECT_FALSE(gate.over_limit(Direction::kWrite, 3));
  EXPECT_FALSE(gate.try_enter(Direction::kWrite, 3));
  EXPECT_EQ(enter_all(gate, 8), 2u) << "reads stay as they are";
  EXPECT_FALSE(gate.completed(Direction::kWrite, 1, 4));
  const Nanos later = 2 + StreamGate::kSmallRecent;
  EXPECT_TRUE(gate.completed(Direction::kWrite, 1, later)) << "the others may come again";
  EXPECT_TRUE(gate.try_enter(Direction::kWrite, later));
  gate.set_far(true);
  gate.note_small(later);
  EXPECT_TRUE(gate.try_enter(Direction::kWrite, later)) << "a far flow may be capped";
}

// --- Who is woken ---

// The workers that are woken for so many commands: "0 2".
std::string claimed(StreamGate& gate, std::size_t commands, Direction direction = Direction::kRead,
                    Nanos now = kNever) {
  std::string text;
  gate.claim(direction, commands, now, [&](std::size_t worker) {
    text += (text.empty() ? "" : " ") + std::to_string(worker);
  });
  return text;
}

TEST(StreamGate, AsManyWorkersAreWokenAsCanStartStreams) {
  StreamGate gate(8);
  const std::string who = "abcdefgh";
  for (std::size_t i = 0; i < who.size(); ++i) gate.add_sleeper(&who[i], i % 4);
  EXPECT_EQ(claimed(gate, 1), "0") << "one command needs one";
  EXPECT_EQ(claimed(gate, 100), "1 2") << "the first has been woken already";
  EXPECT_EQ(enter_all(gate, 8), 2u);
  EXPECT_EQ(claimed(gate, 100), "") << "those who carry values take more of them";
  gate.leave(Direction::kRead, 2);
  EXPECT_EQ(claimed(gate, 100), "3");
  EXPECT_EQ(claimed(gate, 100), "") << "nobody else sleeps";
}

TEST(StreamGate, AWriterIsWokenBesideOthersWhenSmallCommandsHaveEnded) {
  StreamGate gate(2);
  const int one = 0;
  gate.add_sleeper(&one, 0);
  ASSERT_TRUE(gate.try_enter(Direction::kWrite, 1));
  gate.note_small(1);
  EXPECT_EQ(claimed(gate, 1, Direction::kWrite, 2), "");
  EXPECT_EQ(claimed(gate, 1, Direction::kWrite, 1 + StreamGate::kSmallRecent), "0");
}

TEST(StreamGate, AConnectionSleepsOnceAndNotAnyMoreWhenItIsRemoved) {
  StreamGate gate(2);
  const int one = 0;
  const int two = 0;
  gate.add_sleeper(&one, 0);
  gate.add_sleeper(&one, 0);
  gate.add_sleeper(&two, 1);
  gate.remove_sleeper(&one);
  EXPECT_EQ(claimed(gate, 2), "1");
}

}  // namespace
}  // namespace kvferry::redis
