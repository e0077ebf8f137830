#include "redis/stream_gate.hpp"

#include <gtest/gtest.h>

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
  EXPECT_EQ(gate.limit(Direction::kRead), 4u);
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

TEST(StreamGate, StreamsAboveANewLimitEndOneByOne) {
  StreamGate gate(8);
  gate.set_far(true);
  EXPECT_EQ(enter_all(gate, 8), 4u);
  gate.set_far(false);
  EXPECT_TRUE(gate.crowded(Direction::kRead));
  gate.leave(Direction::kRead, 2);
  gate.leave(Direction::kRead, 2);
  EXPECT_FALSE(gate.crowded(Direction::kRead));
}

}  // namespace
}  // namespace kvferry::redis
