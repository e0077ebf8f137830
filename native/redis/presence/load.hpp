#pragma once
// PresenceLoad: whether the views of a server cost it too much. Each of them asks for every key
// that changes, so what counts is changes times views. Above the limit for a second it is too much,
// until it was below half of that for some seconds.
//
// Threads: one at a time. Time is an argument.

#include <algorithm>
#include <cstdint>

#include "base/clock.hpp"

namespace kvferry::redis {

class PresenceLoad {
 public:
  static constexpr Nanos kWindow = 1 * kSecond;
  static constexpr Nanos kCalm = 5 * kSecond;

  // `per_s_max`: questions that all views together may cost a server; 0: any number.
  PresenceLoad(std::uint64_t per_s_max, Nanos now) : per_s_max_(per_s_max), window_at_(now) {}

  void announced(std::size_t keys) noexcept { count_ += keys; }
  // As the server says; at least ours.
  void views(std::uint64_t count) noexcept { views_ = std::max<std::uint64_t>(1, count); }

  // To be called about every second. Whether it is too much now.
  bool update(Nanos now) noexcept {
    if (per_s_max_ == 0 || now - window_at_ < kWindow) return too_much_;
    const double seconds = static_cast<double>(now - window_at_) / static_cast<double>(kSecond);
    per_s_ = static_cast<std::uint64_t>(static_cast<double>(count_) / seconds);
    count_ = 0;
    window_at_ = now;
    const std::uint64_t cost = per_s_ * views_;
    if (cost > (too_much_ ? per_s_max_ / 2 : per_s_max_)) {
      too_much_ = true;
      loud_at_ = now;
    } else if (now - loud_at_ >= kCalm) {
      too_much_ = false;
    }
    return too_much_;
  }
  [[nodiscard]] bool limited() const noexcept { return per_s_max_ != 0; }
  [[nodiscard]] bool too_much() const noexcept { return too_much_; }
  [[nodiscard]] std::uint64_t announced_per_s() const noexcept { return per_s_; }
  [[nodiscard]] std::uint64_t views() const noexcept { return views_; }

 private:
  const std::uint64_t per_s_max_;
  Nanos window_at_;
  Nanos loud_at_ = 0;
  std::uint64_t count_ = 0;  // in this window
  std::uint64_t per_s_ = 0;
  std::uint64_t views_ = 1;
  bool too_much_ = false;
};

}  // namespace kvferry::redis
