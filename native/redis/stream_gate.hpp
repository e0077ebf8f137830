#pragma once
// StreamGate: how many connections may carry large values at once, in each direction, and which
// connections rest: they could begin to, and their workers sleep.
//
// Nobody who is needed sleeps on: a connection rests before it looks for work the last time, and
// work is queued before claim() looks for those who rest.
//
// Threads: any.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "base/check.hpp"
#include "base/clock.hpp"
#include "redis/flow.hpp"
#include "redis/outbox.hpp"

namespace kvferry::redis {

enum class Direction : std::uint8_t { kRead = 0, kWrite = 1 };

class StreamGate {
 public:
  // Where to start from; the flow finds out the rest (docs/decisions/0003-streams.md).
  static constexpr std::size_t kReadStreams = 2;
  static constexpr std::size_t kWriteStreams = 4;
  // On one machine more would gain little, and whoever asks a small thing waits for all of them.
  static constexpr std::size_t kStreamsNearMax = 4;
  // So long after a small command one near stream writes alone: a server reads from all of them
  // before it answers the next.
  static constexpr Nanos kSmallBeside = 100 * kMilli;
  // 1 GB/s: a server is hardly slower, also on a busy machine.
  static constexpr std::size_t kServedBytesPerNano = 1;

  explicit StreamGate(std::size_t connections)
      : connections_(connections),
        sides_{Side(streams_max(Direction::kRead), kReadStreams),
               Side(streams_max(Direction::kWrite), kWriteStreams)} {
    resting_.reserve(connections);  // resting takes no memory
  }

  // A server that is far: every connection streams, because each carries little in a round trip.
  // What looked far because the machine was busy may turn out to be near.
  void set_far(bool far) {
    const std::lock_guard lock(mutex_);
    far_ = far;
  }

  // A small command goes to the server.
  void note_small(Nanos now) noexcept { small_at_.store(now, std::memory_order_relaxed); }

  // True: the connection may start a stream and must leave() when it has nothing in flight.
  [[nodiscard]] bool try_enter(Direction direction, Nanos now) {
    const std::lock_guard lock(mutex_);
    Side& side = at(direction);
    if (side.active >= permitted(direction, now)) return false;
    ++side.active;
    side.flow.on_active(side.active, now);
    return true;
  }

  void leave(Direction direction, Nanos now) {
    const std::lock_guard lock(mutex_);
    Side& side = at(direction);
    check(side.active > 0, "only who entered leaves");
    --side.active;
    side.flow.on_active(side.active, now);
  }

  // Whether any connection carries values.
  [[nodiscard]] bool in_use() {
    const std::lock_guard lock(mutex_);
    return sides_[0].active > 0 || sides_[1].active > 0;
  }

  // How long a server may be busy with the values that are on their way, before it answers.
  [[nodiscard]] Nanos serving() {
    const std::lock_guard lock(mutex_);
    std::size_t bytes = 0;
    for (const Side& side : sides_) bytes += side.active * side.value_bytes;
    return static_cast<Nanos>(bytes / kServedBytesPerNano);
  }

  // Whether more streams are open than the limit now permits: one of them should end.
  [[nodiscard]] bool crowded(Direction direction, Nanos now) {
    const std::lock_guard lock(mutex_);
    return at(direction).active > permitted(direction, now);
  }

  // `bytes` of payload completed. True: the limit rose, so resting connections may find a place.
  [[nodiscard]] bool completed(Direction direction, std::size_t bytes, Nanos now) {
    const std::lock_guard lock(mutex_);
    Side& side = at(direction);
    if (direction == Direction::kWrite &&
        std::exchange(short_, bytes < Outbox::kLargeBytes) != short_) {
      side.flow.allow(streams_max(direction), kWriteStreams);
    }
    side.value_bytes = bytes;
    side.flow.on_bytes(bytes, now);
    const std::size_t before = std::exchange(side.permitted, permitted(direction, now));
    return side.permitted > before;
  }

  // `who` could start a stream when its worker, of that number, is woken. Ends with stir() or when
  // the worker is claimed.
  void rest(const void* who, std::size_t worker) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(resting_, who, &Resting::who) == resting_.end()) {
      check(resting_.size() < connections_, "no more connections rest than there are");
      resting_.push_back({who, worker});
    }
  }
  void stir(const void* who) {
    const std::lock_guard lock(mutex_);
    std::erase_if(resting_, [who](const Resting& each) { return each.who == who; });
  }
  // Names the workers to wake for so many commands: as many as can start streams, those first that
  // rest longest. False: there is none. `now` kNever: whether small commands are recent is left to
  // those who are woken.
  template <typename Wake>
  bool claim(Direction direction, std::size_t commands, Nanos now, Wake wake) {
    for (bool any = false;; any = true) {
      std::size_t worker = 0;
      {
        const std::lock_guard lock(mutex_);
        const std::size_t active = at(direction).active;
        const std::size_t limit = permitted(direction, now);
        if (commands == 0 || active >= limit || resting_.empty()) return any;
        commands = std::min(commands, limit - active) - 1;
        worker = resting_.front().worker;
        std::erase_if(resting_, [&](const Resting& each) { return each.worker == worker; });
      }
      wake(worker);
    }
  }

  [[nodiscard]] std::size_t limit(Direction direction) {
    const std::lock_guard lock(mutex_);
    return far_ ? connections_ : at(direction).flow.limit();
  }

  // How many values all streams carry; told by them.
  void take_up(Direction direction) noexcept {
    at(direction).carried.fetch_add(1, std::memory_order_relaxed);
  }
  void put_down(Direction direction, std::size_t values = 1) noexcept {
    at(direction).carried.fetch_sub(values, std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t carried(Direction direction) noexcept {
    return at(direction).carried.load(std::memory_order_relaxed);
  }

 private:
  struct Side {
    Side(std::size_t streams_max, std::size_t start) : flow(streams_max, start) {}
    Flow flow;
    std::size_t active = 0;
    std::size_t permitted = SIZE_MAX;     // when a value last completed
    std::size_t value_bytes = 0;          // of that value
    std::atomic<std::size_t> carried{0};  // pairs with nothing
  };
  [[nodiscard]] std::size_t streams_max(Direction direction) const {
    // Eight SETs of short values are no longer a wait than four of long ones.
    if (direction == Direction::kWrite && short_) return connections_;
    return std::min(connections_, kStreamsNearMax);
  }
  [[nodiscard]] std::size_t permitted(Direction direction, Nanos now) {
    if (far_) return connections_;
    const std::size_t limit = at(direction).flow.limit();
    if (direction == Direction::kRead) return limit;
    const Nanos small_at = small_at_.load(std::memory_order_relaxed);
    return small_at != kNever && now - small_at < kSmallBeside ? 1 : limit;
  }
  struct Resting {
    const void* who;
    std::size_t worker;
  };
  Side& at(Direction direction) { return sides_[static_cast<std::size_t>(direction)]; }

  const std::size_t connections_;
  std::atomic<Nanos> small_at_{kNever};  // when the last small command went; pairs with nothing
  std::mutex mutex_;                     // guards what follows
  bool far_ = false;
  bool short_ = false;  // the value that was written last
  std::array<Side, 2> sides_;
  std::vector<Resting> resting_;  // the longest first
};

}  // namespace kvferry::redis
