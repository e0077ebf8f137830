#pragma once
// WorkQueue: the commands of one server that no connection has taken yet.
//
// Connections pull: one that is quick takes more, so the slowest flow does not set a batch's time.
// (Far away each takes its share: see Pacing.)
// Three lanes never wait for each other: small commands, reads and writes.
//
// Threads: any. Lifetime: batches are shared; a pulled command stays valid until it is settled.
// Limits: commands_max; a batch that does not fit is refused whole.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.hpp"
#include "redis/batch.hpp"

namespace kvferry::redis {

enum class Lane : std::uint8_t { kSmall = 0, kRead = 1, kWrite = 2 };

[[nodiscard]] Lane lane_of(Verb verb) noexcept;

// One command and the batch that keeps it alive. Empty: nothing to do.
struct Work {
  Batch* batch = nullptr;
  Command* command = nullptr;
  explicit operator bool() const noexcept { return command != nullptr; }
};

class WorkQueue {
 public:
  explicit WorkQueue(std::size_t commands_max) : commands_max_(commands_max) {}

  // False: the limit is reached and nothing was taken.
  [[nodiscard]] bool push(const std::shared_ptr<Batch>& batch);
  // The same for some commands of a batch, by index and none of them deferred: one node's tile.
  [[nodiscard]] bool push(const std::shared_ptr<Batch>& batch, std::vector<std::uint32_t> commands);

  // Takes the next command of the lane.
  Work pull(Lane lane);

  // Gives back a command whose connection broke; it goes first.
  void put_back(Work work);

  [[nodiscard]] bool has_work(Lane lane) const;

  // Removes what will not be sent: commands of cancelled or expired batches - or, with `all`,
  // everything. The caller settles them.
  std::vector<Work> remove(Nanos now, bool all);

  // Commands that wait, of all lanes or of one.
  [[nodiscard]] std::size_t waiting() const noexcept {
    return waiting(Lane::kSmall) + waiting(Lane::kRead) + waiting(Lane::kWrite);
  }
  [[nodiscard]] std::size_t waiting(Lane lane) const noexcept {
    return waiting_[static_cast<std::size_t>(lane)].load(std::memory_order_relaxed);
  }

 private:
  // The commands of one batch that wait here: those listed, or all of them.
  struct Tile {
    std::shared_ptr<Batch> batch;
    std::vector<std::uint32_t> commands;
    std::size_t next = 0;

    // The command that is next, or null. Skips what is deferred: it settles with those it waits
    // for.
    [[nodiscard]] Command* front() noexcept;
  };
  struct Queue {
    std::deque<Tile> tiles;
    std::deque<Work> returned;
  };
  bool push(Tile tile, std::size_t count);
  [[nodiscard]] Queue& queue(Lane lane) noexcept { return lanes_[static_cast<std::size_t>(lane)]; }
  void leaves(Lane lane, std::size_t count = 1);

  const std::size_t commands_max_;
  mutable std::mutex mutex_;
  std::array<Queue, 3> lanes_;
  std::array<std::atomic<std::size_t>, 3> waiting_{};  // by lane; changes under the mutex
};

}  // namespace kvferry::redis
