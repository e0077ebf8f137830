// The simulation itself: it repeats what a seed made, and it finds what was planted.
#include "sim/simulation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace kvferry::sim {
namespace {

constexpr std::uint64_t kSchedulesMax = 20'000;

TEST(Simulation, ASeedMakesTheSameScheduleAgain) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const Verdict first = simulate(seed);
    EXPECT_EQ(first, simulate(seed)) << "seed " << seed;
    EXPECT_NE(first.digest, simulate(seed + 1000).digest);
  }
}

class Planted : public testing::TestWithParam<int> {
 protected:
  [[nodiscard]] static Plant plant() { return static_cast<Plant>(GetParam()); }
};

TEST_P(Planted, IsFound) {
  std::uint64_t seed = 1;
  while (seed <= kSchedulesMax && simulate(seed, {.plant = plant()}).fault.empty()) ++seed;
  ASSERT_LE(seed, kSchedulesMax) << "the plant was not found";
  const std::string fault = simulate(seed, {.plant = plant()}).fault;
  EXPECT_FALSE(fault.empty()) << "a finding must come again";
  EXPECT_EQ(simulate(seed).fault, "") << "without the plant the schedule is sound";
  RecordProperty("seed", std::to_string(seed));
  RecordProperty("fault", fault);
}

INSTANTIATE_TEST_SUITE_P(Plants, Planted, testing::Range(1, static_cast<int>(kPlantCount)),
                         [](const auto& plant) {
                           std::string text(name(static_cast<Plant>(plant.param)));
                           std::ranges::replace(text, '-', '_');
                           return text;
                         });

}  // namespace
}  // namespace kvferry::sim
