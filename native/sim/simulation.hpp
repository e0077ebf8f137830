#pragma once
// Simulation: one schedule, from a seed to a verdict.
//
// One thread and a clock of its own. The scheduler lets callers, workers, the control thread,
// names, network, servers and trouble take one step after another, in an order that the seed
// decides; when nobody can move, the clock jumps to whatever is due next. First a storm, then
// everything heals and the client must recover, or it is closed in the middle of the storm.
//
// Failure: Verdict::fault says which rule was broken. The same seed and plant break it again.

#include <cstdint>
#include <string>

#include "sim/plan.hpp"

namespace kvferry::sim {

struct Verdict {
  std::string fault;  // empty: all rules were kept
  std::uint64_t digest = 0;
  std::uint64_t steps = 0;
  std::uint64_t commands = 0;
  bool operator==(const Verdict&) const = default;
};

struct Options {
  Plant plant = Plant::kNone;
  bool print = false;  // tells everything on stderr
};

Verdict simulate(std::uint64_t seed, const Options& options = {});

}  // namespace kvferry::sim
