#pragma once
// Pacing: what a connection that is up may send now: which work it takes from the queue of its
// node, until a window of bytes is in flight, and when the head of the next SET leaves before its
// value.
//
// A machine: it fills the outbox, and its connection moves the bytes. Small commands never wait
// behind values: they have lanes of their own, and use the others while those are down.
//
// Threads: one. Lifetime: what it refers to is the connection's or outlives it.

#include <cstddef>

#include "redis/liveness.hpp"
#include "redis/outbox.hpp"
#include "redis/replies.hpp"
#include "redis/server.hpp"

namespace kvferry::redis {

class PacingSink {
 public:
  // Sends from the outbox, as far as there is room. False: the connection has ended.
  virtual bool send(Nanos now) = 0;

 protected:
  ~PacingSink() = default;
};

class Pacing {
 public:
  enum class Role : std::uint8_t { kSmall, kData };

  Pacing(Server& server, Role role, std::size_t worker, Outbox& outbox, Replies& replies,
         Liveness& liveness, PacingSink& sink)
      : server_(server),
        role_(role),
        worker_(worker),
        outbox_(outbox),
        replies_(replies),
        liveness_(liveness),
        sink_(sink) {}

  // Takes work while there is room for it. False: the connection has ended meanwhile.
  bool pump(Nanos now);
  // It was perhaps woken for work that it cannot take now: wakes somebody else.
  void pass_on();

  // Takes no new work until resume(), which says whether it was paused.
  void pause() noexcept { paused_ = true; }
  bool resume() noexcept { return std::exchange(paused_, false); }
  [[nodiscard]] bool paused() const noexcept { return paused_; }

  // The command is answered. False: it was not even sent.
  [[nodiscard]] bool answered(Work work);
  // The value of the command is complete.
  void completed(Work work, Nanos now);
  // Nothing more may be sent from the buffers of what is in flight.
  void stop_sending();
  // The socket is gone, and with it what was in flight.
  void drop();
  // Gives up the place among the streams, if it has one.
  void leave_stream(Nanos now);

  [[nodiscard]] bool busy() const noexcept { return replies_.in_flight() > 0 || !outbox_.empty(); }
  // A place among the streams, or a value whose head is sent.
  [[nodiscard]] bool streams() const noexcept { return streaming_ || held_; }
  [[nodiscard]] bool sends_values() const noexcept {
    return streaming_ && direction_ == Direction::kWrite;
  }
  // The head of a SET is sent, and its value comes next.
  [[nodiscard]] bool holds_value() const noexcept { return static_cast<bool>(held_); }

 private:
  bool send(Nanos now);
  void pump_small(Nanos now);
  void pump_data(Nanos now);
  // Takes a place in the gate if there is one and work for it; otherwise it is a sleeper there.
  void start_stream(Nanos now);
  bool take(Lane lane, Nanos now);
  void take_head_early(Nanos now);
  // Whether the command may still be sent; settles it if not.
  bool accept(Work work, Nanos now);
  [[nodiscard]] std::size_t window(Direction direction) const noexcept;
  // How many values it carries at most; far away, as many as the others.
  [[nodiscard]] std::size_t share(Lane lane) const;
  void carries(Work work);
  void put(Work work);
  void put_asking(Work work);

  Server& server_;
  const Role role_;
  const std::size_t worker_;  // its number
  Outbox& outbox_;
  Replies& replies_;
  Liveness& liveness_;
  PacingSink& sink_;
  bool paused_ = false;
  bool up_ = true;          // as far as the sink has said, in this call of pump()
  bool streaming_ = false;  // holds a place in the gate
  Direction direction_ = Direction::kRead;
  std::size_t stream_bytes_ = 0;   // payload of the commands in flight
  std::size_t stream_values_ = 0;  // of those, as the gate counts them
  Work held_;  // a SET whose head is sent and whose payload waits for the reply before it
  int reads_in_a_row_ = 0;
};

}  // namespace kvferry::redis
