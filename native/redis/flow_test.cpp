#include "redis/flow.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace kvferry::redis {
namespace {

constexpr std::size_t kValueBytes = std::size_t{4} << 20;

// A server whose rate (GB/s) depends on how many streams are open; every value takes its time, with
// noise. The streams are always as many as the limit permits.
struct Simulation {
  Flow flow;
  std::function<double(std::size_t)> rate;
  double noise;
  std::minstd_rand random{1};
  Nanos now = 0;
  std::size_t active = 0;

  // Returns the mean rate over these values.
  double run(int values) {
    const Nanos begin = now;
    for (int value = 0; value < values; ++value) {
      if (active != flow.limit()) flow.on_active(active = flow.limit(), now);
      const double factor = std::uniform_real_distribution(1 - noise, 1 + noise)(random);
      now += static_cast<Nanos>(static_cast<double>(kValueBytes) / (rate(active) * factor));
      flow.on_bytes(kValueBytes, now);
    }
    return static_cast<double>(kValueBytes) * values / static_cast<double>(now - begin);
  }
};

double interleaving(std::size_t streams) { return streams <= 2 ? 4.8 : 2.4; }
double capped_flows(std::size_t streams) {
  return std::min(0.6 * static_cast<double>(streams), 4.8);
}

TEST(Flow, StaysLowWhereStreamsDisturbEachOther) {
  Simulation simulation{Flow(8, 1), interleaving, 0.05};
  simulation.run(2'000);
  EXPECT_LE(simulation.flow.limit(), 2u);
  EXPECT_GT(simulation.run(4'000), 0.95 * 4.8);  // trials cost little
}

TEST(Flow, ClimbsWhereFlowsAreCapped) {
  Simulation simulation{Flow(16, 1), capped_flows, 0.05};
  simulation.run(3'000);
  EXPECT_GE(simulation.flow.limit(), 6u);
  EXPECT_GT(simulation.run(2'000), 0.85 * 4.8);
}

TEST(Flow, FollowsAServerThatChanges) {
  Simulation simulation{Flow(8, 1), capped_flows, 0.02};
  simulation.run(3'000);
  simulation.rate = interleaving;
  simulation.run(40'000);
  EXPECT_GT(simulation.run(3'000), 0.9 * 4.8);
}

TEST(Flow, NoiseAloneDoesNotRaiseTheLimit) {
  Simulation simulation{Flow(8, 1), [](std::size_t) { return 4.0; }, 0.3};
  simulation.run(20'000);
  EXPECT_LE(simulation.flow.limit(), 4u);
}

TEST(Flow, OneConnectionHasNothingToTry) {
  Simulation simulation{Flow(1, 5), interleaving, 0.1};
  simulation.run(500);
  EXPECT_EQ(simulation.flow.limit(), 1u);
}

TEST(Flow, AStartIsTakenBeforeTheFirstByteOnly) {
  Flow flow(2, 1);
  flow.allow(8, 4);
  EXPECT_EQ(flow.limit(), 4u);
  flow.on_bytes(1, 1);
  flow.allow(8, 2);
  EXPECT_EQ(flow.limit(), 4u);
}

TEST(Flow, WhatIsAllowedNoMoreIsGivenUpAtOnce) {
  Simulation simulation{Flow(16, 1), capped_flows, 0.05};
  simulation.run(3'000);
  ASSERT_GE(simulation.flow.limit(), 6u);
  simulation.flow.allow(4, 2);
  EXPECT_EQ(simulation.flow.limit(), 4u);
  simulation.run(4'000);
  EXPECT_LE(simulation.flow.limit(), 4u);
  simulation.flow.allow(16, 4);
  simulation.run(3'000);
  EXPECT_GE(simulation.flow.limit(), 6u) << "and found again";
}

}  // namespace
}  // namespace kvferry::redis
