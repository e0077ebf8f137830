#include "sim/io_thread.hpp"

namespace kvferry::sim {
namespace {

constexpr int kIdleRoundsMax = 1000;

}  // namespace

net::Ready SimThread::ready(const Wire& wire) const noexcept {
  if (wire.watcher != this || !wire.client_holds) return {wire.token, false, false};
  // Errors are told whatever is watched.
  return {.token = wire.token,
          .readable = wire.readable() && (wire.wants_readable || wire.reset),
          .writable = wire.writable() && wire.wants_writable};
}

bool SimThread::any_ready() const noexcept {
  for (std::size_t index = 0; index < network_.size(); ++index) {
    const net::Ready one = ready(network_.wire(index));
    if (one.readable || one.writable) return true;
  }
  return false;
}

bool SimThread::runnable() const noexcept {
  return in_round_ || signalled_ || context_.journal.now() >= next_ || any_ready();
}

void SimThread::step() {
  if (!in_round_) poll();
  do {
    in_round_ = worker_.step(ready_left_, context_.journal.now());
  } while (in_round_ && !context_.plan.fine);
  if (!in_round_) end_round();
}

void SimThread::poll() {
  signalled_ = false;
  ready_.clear();
  for (std::size_t index = 0; index < network_.size(); ++index) {
    const net::Ready one = ready(network_.wire(index));
    if (one.readable || one.writable) ready_.push_back(one);
  }
  ready_left_ = ready_;
}

void SimThread::end_round() {
  const Nanos now = context_.journal.now();
  next_ = worker_.next_round(now);
  if (context_.plant == Plant::kLateTimer && next_ != kNever) next_ += 100 * kMilli;
  const bool idle = !signalled_ && next_ <= now && !any_ready();
  idle_rounds_ = idle ? idle_rounds_ + 1 : 0;
  if (idle_rounds_ > kIdleRoundsMax) context_.journal.fail("a worker spins");
}

Outcome SimThread::watch(int fd, std::uint64_t token, bool readable, bool writable) noexcept {
  Wire& wire = network_.wire(static_cast<std::size_t>(fd));
  wire.watcher = this;
  wire.token = token;
  wire.wants_readable = readable;
  wire.wants_writable = writable;
  return Done{};
}

void SimThread::forget(int fd) noexcept {
  network_.wire(static_cast<std::size_t>(fd)).watcher = nullptr;
}

}  // namespace kvferry::sim
