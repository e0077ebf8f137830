#pragma once
// GilRelease: a stretch of work without the GIL, safe at the end of the interpreter.
//
// Before Python 3.14, a daemon thread that asks a finished interpreter for the GIL is ended in
// place by pthread_exit(), whose unwinding aborts the process at the first noexcept frame. So the
// exit is announced: from begin_exit() on, threads other than its caller park where they would ask,
// for good; await_parked() returns when none is left on the way.

#include <Python.h>

namespace kvferry {

class GilRelease {
 public:
  GilRelease() noexcept;
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

// At exit, from the thread that ends the interpreter, before and after all clients are closed.
void begin_exit();
// Waits a second at most.
void await_parked();

// Whether begin_exit() was called by another thread: then nothing new may be started.
[[nodiscard]] bool exiting_elsewhere() noexcept;

}  // namespace kvferry
