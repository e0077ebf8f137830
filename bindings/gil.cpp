#include "gil.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace kvferry {
namespace {

std::atomic<int> without_gil{0};
std::atomic<int> parked{0};
std::atomic<bool> exiting{false};
std::thread::id exit_thread;  // published by `exiting`

// In a forked child those threads do not exist.
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] {
  without_gil = 0;
  parked = 0;
});

}  // namespace

GilRelease::GilRelease() noexcept {
  without_gil.fetch_add(1, std::memory_order_relaxed);
  state_ = PyEval_SaveThread();
}

GilRelease::~GilRelease() {
  if (exiting_elsewhere()) {
    parked.fetch_add(1, std::memory_order_release);
    for (;;) pause();
  }
  PyEval_RestoreThread(state_);
  without_gil.fetch_sub(1, std::memory_order_relaxed);
}

void begin_exit() {
  exit_thread = std::this_thread::get_id();
  exiting.store(true, std::memory_order_release);
}

void await_parked() {
  using namespace std::chrono_literals;
  const auto deadline = std::chrono::steady_clock::now() + 1s;
  PyThreadState* state = PyEval_SaveThread();  // a thread that asked in time gets it
  while (parked.load(std::memory_order_acquire) < without_gil.load(std::memory_order_relaxed) &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(200us);
  }
  PyEval_RestoreThread(state);
}

bool exiting_elsewhere() noexcept {
  return exiting.load(std::memory_order_acquire) && exit_thread != std::this_thread::get_id();
}

}  // namespace kvferry
