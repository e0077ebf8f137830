#include "redis/flow.hpp"

#include <algorithm>

namespace kvferry::redis {
namespace {

constexpr std::size_t kEpochValuesMin = 16;
constexpr std::size_t kEpochBytesMin = std::size_t{32} << 20;
constexpr double kUpGain = 1.08;    // more streams must earn their place
constexpr double kDownGain = 0.97;  // fewer are as good when they are about as fast
constexpr int kRestEpochsMax = 64;

}  // namespace

Flow::Flow(std::size_t streams_max, std::size_t start) noexcept
    : max_(std::max<std::size_t>(streams_max, 1)),
      base_(std::clamp<std::size_t>(start, 1, max_)),
      trial_(base_) {}

void Flow::allow(std::size_t streams_max, std::size_t start) noexcept {
  max_ = std::max<std::size_t>(streams_max, 1);
  if (!started_) base_ = trial_ = std::clamp<std::size_t>(start, 1, max_);
  if (limit() <= max_ && base_ <= max_) return;
  // What was being tried, or was found good, is allowed no more.
  base_ = trial_ = std::min(base_, max_);
  phase_ = Phase::kRest;
  wins_ = 0;
  rest_left_ = rest_epochs_ = 1;
  restart_epoch();
  skip_ = std::max(active_, max_);
  measuring_ = active_ >= limit();
}

void Flow::on_active(std::size_t active, Nanos now) noexcept {
  active_ = active;
  const bool full = active >= limit();
  if (full && !measuring_) {
    since_ = now;
  } else if (!full && measuring_) {
    busy_ += now - since_;
  }
  measuring_ = full;
}

void Flow::on_bytes(std::size_t bytes, Nanos now) noexcept {
  started_ = true;
  if (max_ == 1 || !measuring_) return;
  if (skip_ > 0) {
    if (--skip_ == 0) {
      since_ = now;
      busy_ = 0;
    }
    return;
  }
  bytes_ += bytes;
  ++values_;
  if (values_ < kEpochValuesMin || bytes_ < kEpochBytesMin) return;
  const Nanos busy = busy_ + (now - since_);
  const double rate = static_cast<double>(bytes_) / static_cast<double>(std::max<Nanos>(busy, 1));
  restart_epoch();
  since_ = now;
  end_epoch(rate);
}

void Flow::restart_epoch() noexcept {
  busy_ = 0;
  bytes_ = values_ = 0;
}

void Flow::end_epoch(double rate) noexcept {
  switch (phase_) {
    case Phase::kRest:
      if (--rest_left_ > 0) return;
      trial_ = candidate();
      if (trial_ == base_) {
        rest_left_ = rest_epochs_;
        upwards_ = !upwards_;
        return;
      }
      [[fallthrough]];
    case Phase::kBefore:
      rate_before_ = rate;
      phase_ = Phase::kTrial;
      break;
    case Phase::kTrial:
      rate_trial_ = rate;
      phase_ = Phase::kAfter;
      break;
    case Phase::kAfter:
      judge(rate);
      break;
  }
  // What is in flight began under the old limit. With fewer streams open than permitted, the
  // owner's next on_active() starts the clock.
  skip_ = std::max(base_, trial_);
  measuring_ = active_ >= limit();
}

void Flow::judge(double rate_after) noexcept {
  const double rate_base = (rate_before_ + rate_after) / 2;
  const bool won = rate_trial_ > rate_base * (trial_ > base_ ? kUpGain : kDownGain);
  if (won && ++wins_ < 2) {
    rate_before_ = rate_after;
    phase_ = Phase::kTrial;  // once more, against the epoch that has just ended
    return;
  }
  phase_ = Phase::kRest;
  if (won) {
    base_ = trial_;
    rest_epochs_ = 1;  // go on in the same direction at once
  } else {
    rest_epochs_ = std::min(rest_epochs_ * 2, kRestEpochsMax);
    upwards_ = !upwards_;
  }
  wins_ = 0;
  rest_left_ = rest_epochs_;
}

std::size_t Flow::candidate() const noexcept {
  if (upwards_) return std::min(base_ < 2 ? base_ + 1 : base_ + base_ / 2, max_);
  return base_ > 1 ? base_ - std::max<std::size_t>(base_ / 3, 1) : 1;
}

}  // namespace kvferry::redis
