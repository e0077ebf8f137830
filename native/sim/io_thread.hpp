#pragma once
// SimThread: drives one redis::Worker as redis::IoThread does, without a thread: its poller looks
// at the wires of the network, and the scheduler may let others run between any two steps of a
// round.

#include <vector>

#include "redis/worker.hpp"
#include "sim/network.hpp"

namespace kvferry::sim {

class SimThread final : private net::Watcher {
 public:
  SimThread(const StreamContext& context, Network& network,
            const redis::Worker::Surroundings& shared, std::size_t index)
      : context_(context),
        network_(network),
        worker_(shared, index, *this, [this] { signalled_ = true; }, context.journal.now()) {}

  [[nodiscard]] redis::Worker& worker() noexcept { return worker_; }
  [[nodiscard]] bool runnable() const noexcept;
  // One step of a round, or a whole one. Requires: runnable().
  void step();
  // When it wakes up by itself.
  [[nodiscard]] Nanos next() const noexcept { return in_round_ ? 0 : next_; }

 private:
  Outcome watch(int fd, std::uint64_t token, bool readable, bool writable) noexcept override;
  void forget(int fd) noexcept override;
  // What a poller would report of the wire.
  [[nodiscard]] net::Ready ready(const Wire& wire) const noexcept;
  [[nodiscard]] bool any_ready() const noexcept;
  void poll();
  void end_round();

  const StreamContext& context_;
  Network& network_;
  bool signalled_ = false;
  bool in_round_ = false;
  Nanos next_ = 0;
  int idle_rounds_ = 0;  // in a row, without a wait between them
  std::vector<net::Ready> ready_;
  std::span<const net::Ready> ready_left_;
  redis::Worker worker_;
};

}  // namespace kvferry::sim
