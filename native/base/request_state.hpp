#pragma once
// RequestState: what a client's batch and a store's job have in common: whether somebody asked for
// an early end, where the prefix ended, the first error, and the wait for the end.
//
// Threads: any. What was written before finish() is seen after finished() or wait() said true.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/errors.hpp"

namespace kvferry {

// What is done with each key. The numbers cross into Python. kPing asks a server, not for a key:
// the key only says which node of a cluster; a store knows no such job. Nor kCall, which is any
// other command.
enum class Verb : std::uint8_t { kGet, kSet, kExists, kTouch, kDelete, kPing, kCall };

class RequestState {
 public:
  RequestState() = default;
  RequestState(const RequestState&) = delete;
  RequestState& operator=(const RequestState&) = delete;

  // Asks for an early end: what nobody has begun becomes CANCELLED.
  void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool cancelled() const noexcept {
    return cancelled_.load(std::memory_order_relaxed);
  }

  // Wakes wait(). Called once, after the last outcome.
  void finish();
  // Waits until finish() or the moment `until`; true when finished.
  bool wait(Nanos until);
  [[nodiscard]] bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }

  // The rest requires finished().
  // The first that was told; valid as long as this.
  [[nodiscard]] Reason error() const noexcept { return {error_, error_code_}; }
  [[nodiscard]] Nanos elapsed() const noexcept { return finished_at_ - submitted_at_; }

  std::uint64_t id = 0;  // set at submission
  bool quiet = false;    // somebody waits for it: it is not announced on the event fd

 protected:
  ~RequestState() = default;

  // A key is not OK, of a request that stops there: no later one need be asked for.
  void end_prefix(std::size_t key) noexcept;
  [[nodiscard]] bool behind_prefix(std::size_t key) const noexcept {
    return key > prefix_end_.load(std::memory_order_relaxed);
  }
  // Keeps why something is not OK, if it is the first to say so.
  void note(const Reason& why);

 private:
  std::atomic<std::size_t> prefix_end_{SIZE_MAX};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> finished_{false};
  std::mutex mutex_;  // guards error_, error_code_ and the wait
  std::condition_variable done_;
  std::string error_;
  std::optional<Errc> error_code_;
  Nanos submitted_at_ = monotonic_ns();
  Nanos finished_at_ = 0;
};

}  // namespace kvferry
