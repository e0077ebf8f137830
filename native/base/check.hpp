#pragma once
// check: what a machine believes at its borders, in every build.
//
// A belief that does not hold is a bug of ours. Whoever owns the thread catches it: an I/O thread
// fails its client closed, with the sentence, and the host process lives. So it is never used in
// what is noexcept.

#include <stdexcept>

namespace kvferry {

class CheckFailed : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws CheckFailed. `belief`: a sentence that says what should have held.
inline void check(bool holds, const char* belief) {
  if (!holds) [[unlikely]] {
    throw CheckFailed(belief);
  }
}

}  // namespace kvferry
