#include "base/request_state.hpp"

#include <chrono>

#include "base/best_effort.hpp"

namespace kvferry {

void RequestState::finish() {
  const std::lock_guard lock(mutex_);
  finished_at_ = monotonic_ns();
  finished_.store(true, std::memory_order_release);
  done_.notify_all();
}

bool RequestState::wait(Nanos until) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return finished_.load(std::memory_order_relaxed); };
  if (until == kNever) {
    done_.wait(lock, ready);
    return true;
  }
  const std::chrono::steady_clock::time_point moment{std::chrono::nanoseconds(until)};
  return done_.wait_until(lock, moment, ready);
}

void RequestState::end_prefix(std::size_t key) noexcept {
  std::size_t end = prefix_end_.load(std::memory_order_relaxed);
  while (key < end && !prefix_end_.compare_exchange_weak(end, key, std::memory_order_relaxed)) {
  }
}

void RequestState::note(const Reason& why) {
  if (why.text.empty()) return;
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) return;
  error_code_ = why.code;
  best_effort([&] { error_ = why.text; });  // the status says enough
}

}  // namespace kvferry
