#pragma once
// best_effort: does what may be left out when there is no memory: a line of the log, a hint, work
// that comes round again.

#include <new>

namespace kvferry {

template <typename Act>
void best_effort(Act act) {
  try {
    act();
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace kvferry
