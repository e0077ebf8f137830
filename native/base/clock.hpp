#pragma once
// Monotonic time in nanoseconds. Machines take `now` as an argument, so tests need no sleep;
// only drivers call monotonic_ns().

#include <cstdint>
#include <ctime>

namespace kvferry {

using Nanos = std::int64_t;

inline constexpr Nanos kMicro = 1'000;
inline constexpr Nanos kMilli = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;
inline constexpr Nanos kNever = INT64_MAX;

inline Nanos monotonic_ns() noexcept {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<Nanos>(ts.tv_sec) * kSecond + ts.tv_nsec;
}

// Seconds as nanoseconds; 30 years and more are as good as 30 years.
inline Nanos from_seconds(double seconds) noexcept {
  constexpr double kSecondsMax = 1e9;
  return static_cast<Nanos>((seconds < kSecondsMax ? seconds : kSecondsMax) * 1e9);
}

// a + b, where kNever absorbs.
inline Nanos add_time(Nanos a, Nanos b) noexcept { return a > kNever - b ? kNever : a + b; }

}  // namespace kvferry
