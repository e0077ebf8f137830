#include "redis/liveness.hpp"

namespace kvferry::redis {

Liveness::Decision Liveness::decide(const Load& load, Nanos now) const noexcept {
  if (!load.busy) {
    const bool suspected = load.suspected_at > last_progress_;
    const Nanos ping_at = suspected ? now : add_time(last_progress_, ping_interval_);
    if (now >= ping_at) return {Action::kPing, add_time(now, stall_timeout_)};
    if (!load.unmeasured) return {Action::kWait, ping_at};
    if (now >= measure_at_ && !load.beside_values) {
      return {Action::kMeasure, add_time(now, stall_timeout_)};
    }
    const Nanos look_at = now < measure_at_ ? measure_at_ : add_time(now, measure_in_);
    return {Action::kWait, std::min(ping_at, look_at)};
  }
  const Nanos stalled_at = add_time(last_progress_, stall_timeout_);
  if (now >= stalled_at) {
    return {Action::kCheckStall, std::min(add_time(now, stall_timeout_), next_deadline_)};
  }
  Nanos next = std::min(stalled_at, next_deadline_);
  if (load.draining) next = std::min(next, drain_deadline_);
  if (unsent_bytes_ || !load.sends_values) return {Action::kWait, next};
  const Nanos look_at = add_time(last_progress_, stall_timeout_ / 8);
  if (now < look_at) return {Action::kWait, std::min(next, look_at)};
  return {Action::kLookAtUnsent, next};
}

bool Liveness::still_sends(std::size_t unsent_bytes, Nanos now) noexcept {
  const std::optional before = std::exchange(unsent_bytes_, unsent_bytes);
  // A thread that slept has not looked.
  const bool sends = before ? *before > unsent_bytes : unsent_bytes > 0;
  if (sends) last_progress_ = now;
  return sends;
}

}  // namespace kvferry::redis
