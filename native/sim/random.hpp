#pragma once
// Random: the one source of chance of a schedule; the same seed makes the same schedule everywhere.
//
// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). Threads: none.

#include <cstdint>

namespace kvferry::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // In [0, count). Requires: 0 < count < 2^32.
  std::uint64_t below(std::uint64_t count) noexcept { return ((next() >> 32) * count) >> 32; }
  // In [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) noexcept {
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::uint64_t count) noexcept { return below(count) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace kvferry::sim
