// kvferry-sim: seeded schedules of the client's machines against model servers.
//
// Usage: kvferry-sim [--seconds S | --count N] [--from SEED] [--plant NAME]
//        kvferry-sim --seed SEED [--plant NAME]    one schedule again, told step by step
// Exit: 0 all rules were kept, 1 one was broken (its seed is printed), 2 usage.

#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "base/clock.hpp"
#include "sim/simulation.hpp"

namespace {

using kvferry::sim::Verdict;

int report(std::uint64_t seed, const Verdict& verdict) {
  if (verdict.fault.empty()) return 0;
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), verdict.fault.c_str());
  return 1;
}

int replay(std::uint64_t seed, kvferry::sim::Plant plant) {
  const Verdict verdict = kvferry::sim::simulate(seed, {.plant = plant, .print = true});
  std::printf("seed %llu: %llu steps, digest %016llx\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(verdict.steps),
              static_cast<unsigned long long>(verdict.digest));
  return report(seed, verdict);
}

int sweep(std::uint64_t from, std::uint64_t count, double seconds, kvferry::sim::Plant plant) {
  const kvferry::Nanos end = kvferry::monotonic_ns() + kvferry::from_seconds(seconds);
  std::uint64_t steps = 0;
  std::uint64_t commands = 0;
  std::uint64_t done = 0;
  int status = 0;
  while (status == 0 && done < count && kvferry::monotonic_ns() < end) {
    const Verdict verdict = kvferry::sim::simulate(from + done, {.plant = plant, .print = false});
    status = report(from + done, verdict);
    steps += verdict.steps;
    commands += verdict.commands;
    ++done;
  }
  const double took = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  std::printf(
      "%llu schedules from seed %llu, %llu commands, %llu steps in %.1f s of CPU: %.0f per "
      "second\n",
      static_cast<unsigned long long>(done), static_cast<unsigned long long>(from),
      static_cast<unsigned long long>(commands), static_cast<unsigned long long>(steps), took,
      static_cast<double>(done) / took);
  return status;
}

int usage() {
  std::fprintf(stderr,
               "usage: kvferry-sim [--seconds S] [--count N] [--from SEED] [--plant NAME]\n"
               "       kvferry-sim --seed SEED [--plant NAME]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  // Giving memory back between schedules costs more than the schedules.
  ::mallopt(M_TRIM_THRESHOLD, 64 << 20);
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  double seconds = 2;
  std::uint64_t count = UINT64_MAX;
  std::uint64_t from = 1;
  bool one = false;
  auto plant = kvferry::sim::Plant::kNone;
  for (int index = 1; index + 1 < argc; index += 2) {
    const std::string_view option = argv[index];
    const char* value = argv[index + 1];
    if (option == "--seconds") {
      seconds = std::strtod(value, nullptr);
    } else if (option == "--count") {
      count = std::strtoull(value, nullptr, 10);
      seconds = 1e9;
    } else if (option == "--from" || option == "--seed") {
      from = std::strtoull(value, nullptr, 10);
      one = option == "--seed";
    } else if (option == "--plant" && kvferry::sim::plant_named(value)) {
      plant = *kvferry::sim::plant_named(value);
    } else {
      return usage();
    }
  }
  if (argc % 2 == 0) return usage();
  return one ? replay(from, plant) : sweep(from, count, seconds, plant);
}
