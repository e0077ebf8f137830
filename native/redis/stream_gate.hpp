#pragma once
// StreamGate: how many connections may carry large values at once, in each direction.
//
// Threads: any.

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "redis/flow.hpp"

namespace kvferry::redis {

enum class Direction : std::uint8_t { kRead = 0, kWrite = 1 };

class StreamGate {
 public:
  // Where to start from; the flow finds out the rest (docs/decisions/0003-streams.md).
  static constexpr std::size_t kReadStreams = 2;
  static constexpr std::size_t kWriteStreams = 4;
  // On one machine more would gain little, and whoever asks a small thing waits for all of them.
  static constexpr std::size_t kStreamsNearMax = 4;

  explicit StreamGate(std::size_t connections)
      : connections_(connections),
        sides_{Side(std::min(connections, kStreamsNearMax), kReadStreams),
               Side(std::min(connections, kStreamsNearMax), kWriteStreams)} {}

  // A server that is far: flows may be capped, so every connection may stream. What looked far
  // because the machine was busy may turn out to be near.
  void set_far(bool far) {
    const std::lock_guard lock(mutex_);
    if (far == far_) return;
    far_ = far;
    const std::size_t most = far ? connections_ : std::min(connections_, kStreamsNearMax);
    sides_[0].flow.allow(most, far ? kStreamsNearMax : kReadStreams);
    sides_[1].flow.allow(most, far ? kStreamsNearMax : kWriteStreams);
  }

  // True: the connection may start a stream and must leave() when it has nothing in flight.
  [[nodiscard]] bool try_enter(Direction direction, Nanos now) {
    const std::lock_guard lock(mutex_);
    Side& side = at(direction);
    if (side.active >= side.flow.limit()) return false;
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

  // Whether more streams are open than the limit now permits: one of them should end.
  [[nodiscard]] bool crowded(Direction direction) {
    const std::lock_guard lock(mutex_);
    const Side& side = at(direction);
    return side.active > side.flow.limit();
  }

  // `bytes` of payload completed. True: the limit rose, so idle connections may find a place.
  [[nodiscard]] bool completed(Direction direction, std::size_t bytes, Nanos now) {
    const std::lock_guard lock(mutex_);
    Side& side = at(direction);
    const std::size_t before = side.flow.limit();
    side.flow.on_bytes(bytes, now);
    return side.flow.limit() > before;
  }

  [[nodiscard]] std::size_t limit(Direction direction) {
    const std::lock_guard lock(mutex_);
    return at(direction).flow.limit();
  }

 private:
  struct Side {
    Side(std::size_t streams_max, std::size_t start) : flow(streams_max, start) {}
    Flow flow;
    std::size_t active = 0;
  };
  Side& at(Direction direction) { return sides_[static_cast<std::size_t>(direction)]; }

  const std::size_t connections_;
  std::mutex mutex_;  // guards what follows
  bool far_ = false;
  std::array<Side, 2> sides_;
};

}  // namespace kvferry::redis
