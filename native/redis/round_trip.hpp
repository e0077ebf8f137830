#pragma once
// RoundTrip: how far away a server is, from how long its answers took.
//
// The shortest answer counts: all that makes one longer happens at the ends. But a server may move
// away, behind a name or a proxy that stay the same, and then no answer is as short as that again.
// So where several in a row take much longer, the shortest of those counts from then on. Nothing is
// learnt from what a busy machine does: that takes a few milliseconds, and not each time.
//
// A pure machine. Threads: none; the owner locks (Server).

#include <algorithm>

#include "base/clock.hpp"

namespace kvferry::redis {

class RoundTrip {
 public:
  // So many answers in a row, each so many times as long as before, and longer than this.
  static constexpr int kInARow = 4;
  static constexpr Nanos kTimes = 2;
  static constexpr Nanos kLong = 5 * kMilli;

  // In nanoseconds; 0: nothing was answered yet.
  [[nodiscard]] Nanos shortest() const noexcept { return shortest_; }

  // A server that owed the connection nothing began to answer after so long. `served`: so much of
  // it may have gone into values of ours on other connections.
  void note(Nanos took, Nanos served = 0) noexcept {
    took = std::max<Nanos>(took, 1);
    const Nanos too_long = std::max(kLong, kTimes * shortest_);
    if (shortest_ == 0 || took < too_long) {
      shortest_ = shortest_ == 0 ? took : std::min(shortest_, took);
      longer_ = kNever;
      in_a_row_ = 0;
      return;
    }
    if (took - served < too_long) return;  // it says nothing
    longer_ = std::min(longer_, took);
    if (++in_a_row_ < kInARow) return;
    shortest_ = longer_;
    longer_ = kNever;
    in_a_row_ = 0;
  }

 private:
  Nanos shortest_ = 0;
  Nanos longer_ = kNever;  // the shortest of those in a row
  int in_a_row_ = 0;
};

}  // namespace kvferry::redis
