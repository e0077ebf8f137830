#pragma once
// StreamGate: how many connections to a server may carry large values at once, in each direction,
// and which workers to wake when commands are queued.
//
// A connection that carries large values is a stream. It enters the gate before its first value and
// leaves when none is in flight. The limit comes from `Flow`, which finds it by trying; a far
// server gets a stream on every connection (docs/decisions/0003-streams.md).
//
// A sleeper is a connection that could start a stream and whose worker sleeps. No wake-up is lost:
// a connection adds itself as a sleeper before it looks for work the last time, and whoever queues
// work calls claim() behind that.
//
// Threads: any. One mutex, held for a few instructions; claim() wakes outside of it.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "redis/flow.hpp"

namespace kvferry::redis {

enum class Direction : std::uint8_t { kRead = 0, kWrite = 1 };

class StreamGate {
 public:
  // The limits to start from; `Flow` finds better ones.
  static constexpr std::size_t kReadStreams = 2;
  static constexpr std::size_t kWriteStreams = 4;
  // To a near server, in each direction: more gain little in throughput, and a small command waits
  // for the server's turn with all of them.
  static constexpr std::size_t kStreamsNearMax = 4;
  // So long after a small command, one stream alone writes to a near server: a server reads from
  // every stream before it answers the next small command.
  static constexpr Nanos kSmallRecent = 100 * kMilli;
  // The slowest rate at which a server takes values, also on a busy machine: 1 GB/s.
  static constexpr std::size_t kServerBytesPerNano = 1;

  // `connections`: to this server.
  explicit StreamGate(std::size_t connections);

  // Whether the server is far: then every connection streams, because each carries little in a
  // round trip. A busy machine can make a near server look far, so this may be taken back.
  void set_far(bool far);

  // A small command is sent to the server.
  void note_small(Nanos now) noexcept { small_at_.store(now, std::memory_order_relaxed); }

  // True: the connection may start a stream, and must leave() when it has nothing in flight.
  [[nodiscard]] bool try_enter(Direction direction, Nanos now);
  void leave(Direction direction, Nanos now);

  // Whether there is a stream in either direction.
  [[nodiscard]] bool in_use();

  // The longest that the server may be busy with the values of all streams before it answers.
  [[nodiscard]] Nanos server_backlog();

  // Whether more streams are open than the limit now permits: one of them should leave.
  [[nodiscard]] bool over_limit(Direction direction, Nanos now);

  // A value of `bytes` completed. True: the limit rose, so sleepers may find a place.
  [[nodiscard]] bool completed(Direction direction, std::size_t bytes, Nanos now);

  // `who` could start a stream once its worker, of that number, is woken. It sleeps until
  // remove_sleeper(), or until claim() names its worker.
  void add_sleeper(const void* who, std::size_t worker);
  void remove_sleeper(const void* who);

  // Calls `wake` with the number of each worker to wake for so many queued commands: as many as
  // can start streams, those first whose connections sleep longest. False: there is none.
  // `now` kNever: the caller has no time at hand, and small commands do not limit the count; a
  // worker that is woken in vain finds that out in try_enter().
  template <typename Wake>
  bool claim(Direction direction, std::size_t commands, Nanos now, Wake wake) {
    bool any = false;
    while (const auto worker = next_worker(direction, commands, now)) {
      wake(*worker);
      any = true;
    }
    return any;
  }

  // The streams that the server takes best, small commands apart.
  [[nodiscard]] std::size_t limit(Direction direction);

  // The number of values in flight on all streams; streams count their own.
  void add_value(Direction direction) noexcept {
    at(direction).values.fetch_add(1, std::memory_order_relaxed);
  }
  void remove_values(Direction direction, std::size_t count = 1) noexcept {
    at(direction).values.fetch_sub(count, std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t values(Direction direction) noexcept {
    return at(direction).values.load(std::memory_order_relaxed);
  }

 private:
  struct Side {
    Side(std::size_t streams_max, std::size_t start) : flow(streams_max, start) {}
    Flow flow;
    std::size_t streams = 0;
    std::size_t permitted = SIZE_MAX;    // when a value last completed
    std::size_t value_bytes = 0;         // of that value
    std::atomic<std::size_t> values{0};  // a count alone; pairs with nothing
  };
  struct Sleeper {
    const void* who;
    std::size_t worker;
  };
  // One worker to wake, whose sleepers are removed; counts down `commands`.
  std::optional<std::size_t> next_worker(Direction direction, std::size_t& commands, Nanos now);
  [[nodiscard]] std::size_t streams_max(Direction direction) const;
  [[nodiscard]] std::size_t permitted(Direction direction, Nanos now);
  Side& at(Direction direction) { return sides_[static_cast<std::size_t>(direction)]; }

  const std::size_t connections_;
  std::atomic<Nanos> small_at_{kNever};  // when a small command was last sent; pairs with nothing
  std::mutex mutex_;                     // guards what follows
  bool far_ = false;
  bool wrote_short_ = false;  // the value that was written last is below Outbox::kLargeBytes
  std::array<Side, 2> sides_;
  std::vector<Sleeper> sleepers_;  // who sleeps longest first
};

}  // namespace kvferry::redis
