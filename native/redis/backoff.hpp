#pragma once
// Backoff: how long to wait before the next attempt: uniformly random below a ceiling that doubles
// ("full jitter", AWS Architecture Blog 2015), so that many clients do not return in step.

#include <algorithm>
#include <cstdint>
#include <random>

#include "base/clock.hpp"

namespace kvferry::redis {

class Backoff {
 public:
  Backoff(Nanos ceiling_min, Nanos ceiling_max, std::uint64_t seed) noexcept
      : ceiling_min_(ceiling_min), ceiling_max_(ceiling_max), ceiling_(ceiling_min), random_(seed) {
    random_.discard(8);  // neighbouring seeds begin alike
  }

  [[nodiscard]] Nanos next() noexcept {
    const Nanos delay = std::uniform_int_distribution<Nanos>(ceiling_ / 8, ceiling_)(random_);
    ceiling_ = std::min(ceiling_ * 2, ceiling_max_);
    return delay;
  }

  // After success.
  void reset() noexcept { ceiling_ = ceiling_min_; }

 private:
  Nanos ceiling_min_;
  Nanos ceiling_max_;
  Nanos ceiling_;
  std::minstd_rand random_;
};

}  // namespace kvferry::redis
