#pragma once
// PresenceView: which keys with a prefix there are, told by the servers themselves: one control
// connection to every primary, one thread for all of them. Callers ask without a round trip.
//
// It drives PresenceState and, for each connection, a PresenceFeed. Of all views with one name of
// a seat only the one that has it connects; the others know nothing, until it is free. A connection
// that ends, goes silent or falls behind makes its node's keys unknown; so does any change of the
// nodes.
//
// Threads: look_up(), wrote(), stats() and why() from any; the thread is "kvferry-view".
// Lifetime: config, router, log and what the link context refers to outlive it.
// Failure: none that callers see. Unknown is always a right answer, and the log says why.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/event_fd.hpp"
#include "base/log_sink.hpp"
#include "base/thread.hpp"
#include "redis/batch.hpp"
#include "redis/link.hpp"
#include "redis/presence/feed.hpp"
#include "redis/presence/seat.hpp"
#include "redis/presence/state.hpp"
#include "redis/router.hpp"

namespace kvferry::redis {

struct PresenceOptions {
  std::string prefix;
  std::size_t keys_max = 4'000'000;
  std::string seat{};          // see PresenceSeat; empty: every view connects
  std::uint64_t load_max = 0;  // see PresenceLoad; 0: no limit
  bool optional = false;       // nobody asked for it: a server that refuses is no warning
};

class PresenceView {
 public:
  // Fails with: kSystem.
  static Result<std::unique_ptr<PresenceView>> open(PresenceOptions options, const Config& config,
                                                    Router& router, const LinkContext& links,
                                                    LogSink& log);

  // Throws std::system_error without resources.
  void start();
  // Returns when the thread has ended. The links' stop signal must be raised before. Idempotent.
  void stop();
  // In a forked child, which has no thread of it: the seat is the parent's alone.
  void forked() noexcept { seat_.let_go(); }

  // Requires: as many answers as keys.
  void look_up(std::span<const std::string_view> keys, std::span<Presence> answers) const;
  // To be called when all of a batch's commands have settled, before anybody hears of it: what it
  // stored is then not called absent.
  void wrote(Batch& batch);
  [[nodiscard]] PresenceStats stats() const { return state_.stats(); }
  [[nodiscard]] const std::string& prefix() const noexcept { return options_.prefix; }
  // Why it does not know all; for people. Empty: nothing is in its way.
  [[nodiscard]] std::string why() const;

 private:
  // A primary node and, while there is one, the connection to it.
  struct Watched {
    std::shared_ptr<Server> server;  // owned by the router as well, until it leaves
    PresenceState::NodeId id;
    std::unique_ptr<Link> link;
    std::unique_ptr<PresenceFeed> feed;  // there when `link` is
    Nanos opened_at = 0;
    Nanos dial_at = 0;
    Nanos pause = 0;           // before the last try
    bool has_more = false;     // received and not yet looked at
    std::string problem = {};  // that was logged last
    bool too_much = false;     // its feed said so last
    std::uint64_t sent = 0;    // bytes to its server, when it was last listened to
    std::uint64_t broken = 0;  // connections of its server, before this one was dialled
  };

  PresenceView(PresenceOptions options, const Config& config, Router& router,
               const LinkContext& links, LogSink& log, EventFd wake);
  void run() noexcept;
  void loop();
  // Waits for a reply, wake() or the moment `until`; false: stop.
  bool wait(Nanos until);
  // Whether the client has sent much to the node since this was last asked.
  static bool writes_much(Watched& node);
  // Whether it came within the time.
  bool wait_for_stop(Nanos time);
  void take_seat(Nanos now);
  void follow_nodes();
  void tell_load(Watched& node);
  void explain(std::string why);
  void dial(Watched& node, Nanos now);
  // Whether anything came.
  bool listen(Watched& node);
  // Sends what is due; returns when to be called next.
  Nanos drive(Watched& node, Nanos now);
  // Ends the connection; the next is dialled after its pause, or after `pause_min`.
  void part(Watched& node, const Error& why, Nanos pause_min = 0);

  const PresenceOptions options_;
  const Config& config_;
  Router& router_;
  const LinkContext links_;
  LogSink& log_;
  const EventFd wake_;
  PresenceState state_;
  PresenceSeat seat_;  // of the thread, as what follows
  Nanos seat_at_ = 0;  // when to try again
  bool told_ = false;  // that there was too much
  std::vector<Watched> nodes_;
  mutable std::mutex why_mutex_;
  std::string why_;  // guarded by it
  // The router's generation that nodes_ is of; what callers compare with.
  std::atomic<std::uint64_t> generation_{~std::uint64_t{0}};
  Thread thread_;
};

}  // namespace kvferry::redis
