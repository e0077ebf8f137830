#include "sim/plan.hpp"

#include <algorithm>
#include <array>

#include "sim/addresses.hpp"

namespace kvferry::sim {
namespace {

constexpr std::array<std::string_view, kPlantCount> kNames{
    "none",        "swap-replies", "drop-reply",    "foreign-value",
    "lost-write",  "torn-write",   "settle-twice",  "forget-command",
    "no-asking",   "stale-node",   "late-landing",  "late-sending",
    "leak-stream", "late-timer",   "forget-cancel", "stale-map"};

}  // namespace

std::string_view name(Plant plant) noexcept { return kNames[static_cast<std::size_t>(plant)]; }

std::optional<Plant> plant_named(std::string_view name) noexcept {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Plant>(found - kNames.begin());
}

Plan draw_plan(Random& random) noexcept {
  Plan plan;
  const std::uint64_t kind = random.below(16);
  if (kind >= 14) plan.topology = redis::Topology::kSentinel;
  if (kind >= 11 && kind < 14) plan.topology = redis::Topology::kCluster;
  const bool cluster = plan.topology == redis::Topology::kCluster;
  if (cluster) plan.primaries = 1 + random.below(3);
  plan.replicas = plan.topology == redis::Topology::kSentinel || (cluster && random.one_in(2));
  plan.reads_replicas = cluster && plan.replicas && random.one_in(2);
  plan.connections = random.one_in(3) ? 2 : 1;
  plan.workers = random.one_in(4) ? 2 : 1;
  plan.batches = 1 + random.below(random.one_in(8) ? 8 : 3);
  plan.items_max = 1 + random.below(random.one_in(8) ? 12 : 3);
  const std::uint64_t pieces = random.below(16);
  plan.pieces = pieces < 10 ? Pieces::kWhole : pieces < 15 ? Pieces::kMixed : Pieces::kTiny;
  constexpr std::array<std::size_t, 4> kBytes{64, 256, 256, 2048};
  plan.value_bytes_max = plan.pieces == Pieces::kTiny ? 48 : kBytes[random.below(4)];
  if (plan.pieces != Pieces::kTiny && random.one_in(32)) plan.value_bytes_max = 80 * kKiB;
  constexpr std::array<std::size_t, 4> kWindows{0, 0, 1, 300};
  plan.window_bytes = kWindows[random.below(4)];
  if (random.one_in(8)) plan.drain_bytes_max = 100;
  // Stripes begin above 4 MiB, and such a schedule takes as long as a hundred others.
  plan.striped = random.one_in(4000) && !cluster && plan.pieces == Pieces::kWhole;
  if (plan.striped) plan.items_max = std::min<std::size_t>(plan.items_max, 2);
  plan.fine = random.one_in(2);
  plan.low_water = random.one_in(2);
  plan.credentials = random.one_in(8);
  plan.resp2 = random.one_in(4);
  plan.pushes = !plan.resp2 && random.one_in(4);
  if (random.one_in(2)) plan.troubles = 1 + random.below(4);
  if (cluster && plan.primaries > 1 && !random.one_in(4)) plan.migrations = 1 + random.below(3);
  plan.short_deadlines = random.one_in(3);
  plan.cancels = random.one_in(2);
  plan.closes_early = random.one_in(6);
  return plan;
}

redis::Config config_of(const Plan& plan) {
  redis::Config config;
  config.endpoint = endpoint_of(0);
  config.topology = plan.topology;
  config.read_from = plan.reads_replicas ? redis::ReadFrom::kReplica : redis::ReadFrom::kPrimary;
  config.topology_refresh = 1 * kSecond;
  config.connections = plan.connections;
  config.workers = std::min(plan.workers, plan.connections);
  config.window_bytes = plan.window_bytes;
  config.drain_bytes_max = plan.drain_bytes_max;
  return config;
}

}  // namespace kvferry::sim
