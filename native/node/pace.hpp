#pragma once
// Pace: whether what moves in one direction of a connection moves fast enough to be waited for.
//
// While something is due, every window must move some bytes, and more where more is due: a tenth of
// it. So a peer that stopped is found, one that takes a byte now and then, and one whose large
// value would keep others waiting for very long.
// Threads: none.

#include <algorithm>
#include <cstddef>

#include "base/clock.hpp"

namespace kvferry::node {

struct PaceLimits {
  Nanos window = 10 * kSecond;
  std::size_t window_bytes_min = 1024 * 1024;
  std::size_t windows_max = 10;  // that what is due may take
  Nanos silence = 10 * kSecond;  // from the begin of a connection to its first command
};

class Pace {
 public:
  void moved(std::size_t bytes) noexcept { bytes_ += bytes; }
  // Nothing is due at this moment.
  void done() noexcept { since_ = kNever; }

  // To be asked several times in a window. `due_bytes`: of what is moving now, all that it has.
  bool too_slow(const PaceLimits& limits, std::size_t due_bytes, Nanos now) noexcept {
    if (due_bytes == 0) {
      done();
    } else if (since_ == kNever) {
      begin(limits, due_bytes, now);
    } else if (now - since_ >= limits.window) {
      const bool slow = bytes_ < wanted_;
      begin(limits, due_bytes, now);
      return slow;
    }
    return false;
  }

 private:
  void begin(const PaceLimits& limits, std::size_t due_bytes, Nanos now) noexcept {
    since_ = now;
    bytes_ = 0;
    wanted_ = std::max(limits.window_bytes_min, due_bytes / limits.windows_max);
  }

  Nanos since_ = kNever;
  std::size_t bytes_ = 0;   // since then
  std::size_t wanted_ = 0;  // in this window
};

}  // namespace kvferry::node
