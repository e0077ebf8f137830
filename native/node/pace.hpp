#pragma once
// Pace: whether what moves in one direction of a connection moves fast enough to be waited for.
//
// While something is pending, every window must move some bytes. So a peer that stopped is found,
// and one that takes a byte now and then.
// Threads: none.

#include <cstddef>

#include "base/clock.hpp"

namespace kvferry::node {

struct PaceLimits {
  Nanos window = 10 * kSecond;
  std::size_t window_bytes_min = 1024 * 1024;
};

class Pace {
 public:
  void moved(std::size_t bytes) noexcept { bytes_ += bytes; }
  // Nothing is pending at this moment.
  void done() noexcept { since_ = kNever; }

  // To be asked several times in a window.
  bool too_slow(const PaceLimits& limits, bool pending, Nanos now) noexcept {
    if (!pending) {
      done();
    } else if (since_ == kNever) {
      since_ = now;
      bytes_ = 0;
    } else if (now - since_ >= limits.window) {
      const bool slow = bytes_ < limits.window_bytes_min;
      since_ = now;
      bytes_ = 0;
      return slow;
    }
    return false;
  }

 private:
  Nanos since_ = kNever;
  std::size_t bytes_ = 0;  // since then
};

}  // namespace kvferry::node
