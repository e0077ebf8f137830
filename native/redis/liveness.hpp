#pragma once
// Liveness: what is overdue on a connection that is up: deadlines of its commands, replies that are
// to be drained, bytes that should move, and a word from a server that has been silent for long.
//
// A machine: it is told what happened and when, and says what to do. Threads: one.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.hpp"

namespace kvferry::redis {

class Liveness {
 public:
  Liveness(Nanos stall_timeout, Nanos ping_interval) noexcept
      : stall_timeout_(stall_timeout), ping_interval_(ping_interval) {}

  // What the connection is at.
  struct Load {
    bool busy;                   // it has something to send, or is owed a reply
    bool draining;               // replies are owed whose commands were released
    bool sends_values;           // what it has sent may be long on its way
    Nanos suspected_at;          // when another connection to the server last ended in silence
    bool unmeasured = false;     // how far away the server is has to be asked here
    bool beside_values = false;  // and an answer now would say how long values take
  };
  enum class Action : std::uint8_t {
    kWait,
    kLookAtUnsent,  // note_unsent(), then wait
    kCheckStall,    // receive; if nothing came, still_sends() or the connection is dead
    kPing,          // pinged()
    kMeasure        // measured(): the same, and what follows need not wait for the answer
  };
  struct Decision {
    Action action;
    Nanos next;  // when to ask again
  };
  [[nodiscard]] Decision decide(const Load& load, Nanos now) const noexcept;

  // --- What happened. ---
  void up(Nanos now) noexcept {
    last_progress_ = now;
    next_deadline_ = kNever;
    measure_in_ = kMeasureIn;
    measure_at_ = add_time(now, measure_in_);
  }
  void ended() noexcept {
    probing_ = false;
    asked_at_ = kNever;
    ends_at_.reset();
  }
  // Something was sent on a connection that had nothing to do. `asks`: so that the server answers
  // it at once.
  void began(Nanos now, bool asks) noexcept {
    last_progress_ = now;
    asked_at_ = asks ? now : kNever;
    ends_at_.reset();
  }
  // What was begun is answered when all of it is there: up to this position of the outbox.
  void ends(std::uint64_t position) noexcept { ends_at_ = position; }
  // The same, and it says nothing about the way.
  void progressed(Nanos now) noexcept { last_progress_ = now; }
  void sent(Nanos now, std::uint64_t position) noexcept {
    last_progress_ = now;
    unsent_bytes_.reset();
    if (ends_at_ && asked_at_ == kNever && position >= *ends_at_) asked_at_ = now;
  }
  // How long the answer took, if this is the beginning of one that was asked of a server that had
  // nothing else of ours to do.
  struct Took {
    Nanos time;
    bool at_most;  // the way took no longer: the server had a value to read before
  };
  std::optional<Took> received(Nanos now) noexcept {
    last_progress_ = now;
    probing_ = false;
    const bool value = std::exchange(ends_at_, std::nullopt).has_value();
    if (asked_at_ == kNever) return std::nullopt;
    return Took{now - std::exchange(asked_at_, kNever), value};
  }
  void pinged(Nanos now) noexcept {
    probing_ = true;
    last_progress_ = asked_at_ = now;
  }
  void measured(Nanos now) noexcept {
    last_progress_ = asked_at_ = now;
    measure_in_ = std::min(2 * measure_in_, kMeasureInMax);
    measure_at_ = add_time(now, measure_in_);
  }
  void accepted(Nanos deadline) noexcept { next_deadline_ = std::min(next_deadline_, deadline); }
  // Commands were released; the first deadline of those that are left.
  void released(Nanos next_deadline, bool draining, Nanos now) noexcept {
    next_deadline_ = next_deadline;
    if (draining) drain_deadline_ = add_time(now, stall_timeout_);
  }
  // The kernel holds megabytes that it still sends over a slow link. What it holds is asked some
  // time after a send, so that those who are quick never ask.
  void note_unsent(std::size_t bytes) noexcept { unsent_bytes_ = bytes; }
  // Nothing came within the limit. True: what was sent is still leaving, which counts as progress.
  [[nodiscard]] bool still_sends(std::size_t unsent_bytes, Nanos now) noexcept;

  // --- What is so. ---
  [[nodiscard]] bool progressed_at(Nanos now) const noexcept { return last_progress_ == now; }
  // A PING is on its way: no work for a connection that may be dead.
  [[nodiscard]] bool probing() const noexcept { return probing_; }
  [[nodiscard]] bool deadline_passed(Nanos now) const noexcept { return now >= next_deadline_; }
  [[nodiscard]] bool drains_too_long(Nanos now) const noexcept { return now >= drain_deadline_; }

 private:
  // After a greeting, for the first time; then after twice as long each time.
  static constexpr Nanos kMeasureIn = 10 * kMilli;
  static constexpr Nanos kMeasureInMax = kSecond;

  const Nanos stall_timeout_;
  const Nanos ping_interval_;
  Nanos last_progress_ = 0;  // when a byte moved, or work began
  Nanos next_deadline_ = kNever;
  Nanos drain_deadline_ = kNever;
  Nanos measure_at_ = kNever;
  Nanos measure_in_ = kMeasureIn;
  Nanos asked_at_ = kNever;  // when it asked a server that owed it nothing, until the answer begins
  std::optional<std::uint64_t> ends_at_;  // the SET that was begun, in the outbox
  std::optional<std::size_t>
      unsent_bytes_;  // when that was looked at, if it was since the last send
  bool probing_ = false;
};

}  // namespace kvferry::redis
