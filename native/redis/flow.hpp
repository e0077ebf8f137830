#pragma once
// Flow: finds how many streams of large values a server takes best, by trying.
//
// More is not better: several large SETs at once make a server interleave half-read values, while
// on a network whose flows are capped each stream adds bandwidth. So the limit is compared with
// its neighbours all the time: an epoch at the present limit, one at another, one at the present
// again (A B A, because machines drift), and a change only after two clear wins in a row. Trials
// that fail become rare; one that wins is followed by the next at once.
//
// A pure machine: it is told of bytes and time and owns neither threads nor clocks.
// Threads: none; the owner locks (StreamGate).

#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"

namespace kvferry::redis {

class Flow {
 public:
  // `start`: the limit to begin with; both are at least 1.
  Flow(std::size_t streams_max, std::size_t start) noexcept;

  // How many streams may be open now; a trial may be under way.
  [[nodiscard]] std::size_t limit() const noexcept {
    return phase_ == Phase::kTrial ? trial_ : base_;
  }

  // Another limit of the limit, above or below; before the first byte also where to start.
  void allow(std::size_t streams_max, std::size_t start) noexcept;

  // The number of open streams changed.
  void on_active(std::size_t active, Nanos now) noexcept;
  // `bytes` of payload are complete.
  void on_bytes(std::size_t bytes, Nanos now) noexcept;

 private:
  enum class Phase : std::uint8_t { kRest, kBefore, kTrial, kAfter };

  void end_epoch(double rate) noexcept;
  void judge(double rate_after) noexcept;
  [[nodiscard]] std::size_t candidate() const noexcept;
  void restart_epoch() noexcept;

  std::size_t max_;
  std::size_t base_;   // the limit that has proved best so far
  std::size_t trial_;  // the one that is being tried
  Phase phase_ = Phase::kRest;
  bool upwards_ = true;  // where the next trial looks
  int wins_ = 0;         // of the present candidate, in a row
  int rest_epochs_ = 1;  // before the next trial
  int rest_left_ = 1;
  double rate_before_ = 0;
  double rate_trial_ = 0;

  // The present epoch. Time counts only while every permitted stream is open: only then is the
  // rate what this limit yields.
  std::size_t active_ = 0;
  bool measuring_ = false;
  bool started_ = false;
  Nanos since_ = 0;
  Nanos busy_ = 0;
  std::size_t bytes_ = 0;
  std::size_t values_ = 0;
  std::size_t skip_ = 0;  // values that began under another limit
};

}  // namespace kvferry::redis
