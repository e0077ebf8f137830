#pragma once
// Server: what all connections to one node share: the queue of work, the health, the flow.
//
// Threads: any; workers and callers meet here. Nothing here blocks.
// Failure: when the breaker opens, everything that waits settles as UNAVAILABLE at once; what a
// replica cannot answer goes to its primary instead. After retire() all work goes elsewhere.

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "base/log_sink.hpp"
#include "redis/breaker.hpp"
#include "redis/config.hpp"
#include "redis/dispatcher.hpp"
#include "redis/handshake.hpp"
#include "redis/round_trip.hpp"
#include "redis/stream_gate.hpp"
#include "redis/work_queue.hpp"

namespace kvferry::redis {

// Counters since the client was opened. Relaxed: each is right, together they are a snapshot.
struct Stats {
  std::atomic<std::uint64_t> bytes_received{0};
  std::atomic<std::uint64_t> content_received{0};  // the same, encoded values as what they become
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> receives{0};  // calls, those that moved nothing as well
  std::atomic<std::uint64_t> sends{0};
  std::atomic<std::uint64_t> commands_settled{0};
  std::atomic<std::uint64_t> commands_retried{0};
  std::atomic<std::uint64_t> connections_opened{0};
  std::atomic<std::uint64_t> connections_lost{0};
  std::atomic<std::uint64_t> connections_broken{0};  // of those: not by a choice of ours
  std::atomic<std::uint64_t> dials_failed{0};
  std::atomic<std::uint64_t> values_corrupt{0};
  // Values that were refused, by codec::FrameFault: kNone has those without a frame.
  std::array<std::atomic<std::uint64_t>, codec::kFrameFaultsCount> refused{};
};

// A round trip that no server on this machine has.
inline constexpr Nanos kFarAway = kMilli / 2;

enum class NodeRole : std::uint8_t { kPrimary, kReplica };

// A Unix socket of this very server, which was found to be good. Data goes there if it can.
struct Shortcut {
  net::Address address;
  std::uint64_t version = 0;  // 0: there is none
};

class Server final : public AskedNode {
 public:
  Server(const Config& config, net::Endpoint endpoint, NodeRole role, LogSink& log,
         Dispatcher& dispatcher);

  [[nodiscard]] const Config& config() const noexcept { return config_; }
  [[nodiscard]] const net::Endpoint& endpoint() const noexcept override { return endpoint_; }
  [[nodiscard]] NodeRole role() const noexcept { return role_; }
  [[nodiscard]] WorkQueue& queue() noexcept { return queue_; }
  [[nodiscard]] std::size_t waiting() const noexcept { return queue_.waiting(); }
  [[nodiscard]] StreamGate& gate() noexcept { return gate_; }
  [[nodiscard]] Stats& stats() noexcept { return stats_; }
  void wake_workers() const { dispatcher_.wake_workers(); }
  // So many commands of that kind were queued: wakes those who can take them, and somebody at all,
  // because what waits may expire.
  void wake_for(Lane lane, std::size_t commands);
  // A stream more may be open: wakes somebody if there is work for one. `now` as of the gate.
  void wake_for_streams(Nanos now = kNever);
  void log(LogLevel level, std::string text) { log_.push(level, std::move(text)); }

  void settle(Work work, Status status, Reason why) override;
  // A connection could not finish it; another will.
  void put_back(Work work);
  // The node answered that another one has the key.
  void redirected(Work work, std::string_view answer);
  // Something here is not as the topology says.
  void suspect() const { dispatcher_.suspect(); }
  // Settles what waits in the queue and will not be sent: cancelled, expired; or `all` of it.
  void sweep(Nanos now);
  void refuse_all(Status status, Reason why);

  // The node left the topology: what waits goes elsewhere, now and later.
  void retire();
  [[nodiscard]] bool retired() const noexcept { return retired_.load(std::memory_order_acquire); }

  // Health, told by connections. `data`: it carries values, not only small commands.
  void on_up(bool data, const ServerInfo& info);
  void on_lost(bool data, bool silent, Reason why, Nanos now);
  // It was up, ended of its own will, and dials again at once.
  void on_left(bool data);
  void on_dial_failed(const Error& error);

  // A connection was told that this server is not the one to ask any more (READONLY after a
  // failover, NOAUTH, REDIRECT): what was dialled before is as useless, whatever it carries. Each
  // connection dials anew when it has nothing in flight, one at a time.
  void renew(Nanos now);
  [[nodiscard]] Nanos renewed_at() const noexcept {
    return renewed_at_.load(std::memory_order_acquire);
  }

  // The Unix socket of this server was found to be good: dials try it first, and connections that
  // are up elsewhere move there, one at a time, when they have nothing to do.
  void set_shortcut(const net::Address& address);
  // It let somebody not in, or a connection ended: no dial goes there until it is set again.
  void lose_shortcut();
  [[nodiscard]] Shortcut shortcut() const;
  [[nodiscard]] std::uint64_t shortcut_version() const noexcept {
    return shortcut_version_.load(std::memory_order_acquire);
  }
  // False: it is another connection's turn.
  [[nodiscard]] bool begin_move() noexcept;
  void end_move();
  // Data connections that are up over a Unix socket.
  void note_unix(int change) noexcept { unix_up_.fetch_add(change, std::memory_order_relaxed); }
  [[nodiscard]] int unix_up() const noexcept { return unix_up_.load(std::memory_order_relaxed); }

  // A defect of ours: nothing is served any more, and nothing hangs.
  void fail_for_good(std::string_view why);

  // The shortest round trip that connections have seen lately, see RoundTrip; 0 before the first.
  void note_round_trip(Nanos took, bool at_most) noexcept;
  // The same of a greeting, during which both sides have more to do.
  void note_greeting(Nanos took) noexcept { note_trip(took, 0); }
  // It seems to be far away, by little more than greetings: somebody should ask it when it is idle.
  [[nodiscard]] bool unmeasured() const noexcept {
    return round_trip() >= kFarAway && answers_.load(std::memory_order_relaxed) < kAnswersEnough;
  }
  [[nodiscard]] Nanos round_trip() const noexcept {
    return round_trip_.load(std::memory_order_acquire);
  }

  // When a connection last ended in silence: the others should ask whether they are alive.
  [[nodiscard]] Nanos suspected_at() const noexcept {
    return suspected_at_.load(std::memory_order_relaxed);
  }

  // False while the breaker is open; down_error() then says why.
  [[nodiscard]] bool available() const noexcept {
    return available_.load(std::memory_order_acquire);
  }
  [[nodiscard]] bool small_lane_up() const noexcept {
    return small_lane_up_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] Error down_error() const;
  [[nodiscard]] int connections_up() const;
  [[nodiscard]] ServerInfo info() const;
  // Whether it is in the availability zone that the configuration names.
  [[nodiscard]] bool in_zone() const noexcept { return in_zone_.load(std::memory_order_relaxed); }
  void note_zone(std::string_view zone) noexcept;

 private:
  // A distance is known from so many answers.
  static constexpr int kAnswersEnough = 4;

  void route_all();
  void note_trip(Nanos took, Nanos served) noexcept;

  // Publishes the breaker's state after a change; returns whether it has just closed.
  void publish(std::unique_lock<std::mutex>& lock);

  const Config& config_;
  const net::Endpoint endpoint_;
  const NodeRole role_;
  LogSink& log_;
  Dispatcher& dispatcher_;
  WorkQueue queue_;
  StreamGate gate_;
  Stats stats_;

  mutable std::mutex mutex_;
  Breaker breaker_;
  bool failed_ = false;
  Error down_error_{Errc::kConnect, "the server is unavailable"};
  ServerInfo info_;
  Shortcut shortcut_;                               // the last one, even when it was lost
  std::atomic<std::uint64_t> shortcut_version_{0};  // 0 while there is none
  std::atomic<bool> moving_{false};
  std::atomic<int> unix_up_{0};
  std::atomic<bool> available_{true};
  std::atomic<bool> retired_{false};
  std::atomic<bool> in_zone_{false};
  std::atomic<bool> small_lane_up_{false};
  std::mutex trips_mutex_;
  RoundTrip trips_;
  std::atomic<Nanos> round_trip_{0};  // what trips_ says
  std::atomic<int> answers_{0};       // that say how far it is, greetings aside
  std::atomic<Nanos> suspected_at_{0};
  std::atomic<Nanos> renewed_at_{-1};  // before any dial
};

}  // namespace kvferry::redis
