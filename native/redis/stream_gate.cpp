#include "redis/stream_gate.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "redis/outbox.hpp"

namespace kvferry::redis {

StreamGate::StreamGate(std::size_t connections)
    : connections_(connections),
      sides_{Side(streams_max(Direction::kRead), kReadStreams),
             Side(streams_max(Direction::kWrite), kWriteStreams)} {
  sleepers_.reserve(connections);  // add_sleeper() takes no memory
}

void StreamGate::set_far(bool far) {
  const std::lock_guard lock(mutex_);
  far_ = far;
}

bool StreamGate::try_enter(Direction direction, Nanos now) {
  const std::lock_guard lock(mutex_);
  Side& side = at(direction);
  if (side.streams >= permitted(direction, now)) return false;
  ++side.streams;
  side.flow.on_active(side.streams, now);
  return true;
}

void StreamGate::leave(Direction direction, Nanos now) {
  const std::lock_guard lock(mutex_);
  Side& side = at(direction);
  check(side.streams > 0, "only who entered leaves");
  --side.streams;
  side.flow.on_active(side.streams, now);
}

bool StreamGate::in_use() {
  const std::lock_guard lock(mutex_);
  return sides_[0].streams > 0 || sides_[1].streams > 0;
}

Nanos StreamGate::server_backlog() {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const Side& side : sides_) bytes += side.streams * side.value_bytes;
  return static_cast<Nanos>(bytes / kServerBytesPerNano);
}

bool StreamGate::over_limit(Direction direction, Nanos now) {
  const std::lock_guard lock(mutex_);
  return at(direction).streams > permitted(direction, now);
}

bool StreamGate::completed(Direction direction, std::size_t bytes, Nanos now) {
  const std::lock_guard lock(mutex_);
  Side& side = at(direction);
  if (direction == Direction::kWrite) {
    const bool is_short = bytes < Outbox::kLargeBytes;
    if (std::exchange(wrote_short_, is_short) != is_short) {
      side.flow.allow(streams_max(direction), kWriteStreams);
    }
  }
  side.value_bytes = bytes;
  side.flow.on_bytes(bytes, now);
  const std::size_t before = std::exchange(side.permitted, permitted(direction, now));
  return side.permitted > before;
}

void StreamGate::add_sleeper(const void* who, std::size_t worker) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(sleepers_, who, &Sleeper::who) != sleepers_.end()) return;
  check(sleepers_.size() < connections_, "no more connections sleep than there are");
  sleepers_.push_back({who, worker});
}

void StreamGate::remove_sleeper(const void* who) {
  const std::lock_guard lock(mutex_);
  std::erase_if(sleepers_, [who](const Sleeper& each) { return each.who == who; });
}

std::optional<std::size_t> StreamGate::next_worker(Direction direction, std::size_t& commands,
                                                   Nanos now) {
  const std::lock_guard lock(mutex_);
  const std::size_t streams = at(direction).streams;
  const std::size_t most = permitted(direction, now);
  if (commands == 0 || streams >= most || sleepers_.empty()) return std::nullopt;
  commands = std::min(commands, most - streams) - 1;
  const std::size_t worker = sleepers_.front().worker;
  std::erase_if(sleepers_, [&](const Sleeper& each) { return each.worker == worker; });
  return worker;
}

std::size_t StreamGate::limit(Direction direction) {
  const std::lock_guard lock(mutex_);
  return far_ ? connections_ : at(direction).flow.limit();
}

// The highest limit that `Flow` may find at a near server.
std::size_t StreamGate::streams_max(Direction direction) const {
  // Eight SETs of short values keep a small command waiting no longer than four of long ones.
  if (direction == Direction::kWrite && wrote_short_) return connections_;
  return std::min(connections_, kStreamsNearMax);
}

std::size_t StreamGate::permitted(Direction direction, Nanos now) {
  if (far_) return connections_;
  const std::size_t limit = at(direction).flow.limit();
  if (direction == Direction::kRead) return limit;
  const Nanos small_at = small_at_.load(std::memory_order_relaxed);
  return small_at != kNever && now - small_at < kSmallRecent ? 1 : limit;
}

}  // namespace kvferry::redis
