#pragma once
// Breaker: whether a server is worth asking. Open means "no" at once: computing again is always
// possible, so a cache that refuses in a microsecond is healthy and one that waits is not.
//
// It opens when no data connection is up and failures have added up: a refusal counts one, silence
// and rejected credentials count enough at once. It closes when a data connection is up again;
// dialling goes on all the while. Threads: none; the owner locks.

#include "base/check.hpp"

namespace kvferry::redis {

class Breaker {
 public:
  static constexpr int kFailuresToOpen = 3;
  enum class Failure { kRefused, kDecisive };  // decisive: time-outs, credentials

  void on_up() noexcept {
    ++up_;
    failures_ = 0;
  }
  // A connection that was up ended. `silent`: it did not answer in time.
  void on_lost(bool silent) {
    check(up_ > 0, "a connection that is lost was up");
    --up_;
    if (silent) failures_ = kFailuresToOpen;
  }
  void on_dial_failed(Failure failure) noexcept {
    failures_ += failure == Failure::kDecisive ? kFailuresToOpen : 1;
  }

  [[nodiscard]] bool open() const noexcept { return up_ == 0 && failures_ >= kFailuresToOpen; }
  [[nodiscard]] int up() const noexcept { return up_; }

 private:
  int up_ = 0;
  int failures_ = 0;
};

}  // namespace kvferry::redis
