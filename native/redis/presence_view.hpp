#pragma once
// PresenceView: which keys with a prefix there are, told by the servers themselves: one control
// connection to every primary, one thread for all of them. Callers ask without a round trip.
//
// It drives PresenceState and, for each connection, a PresenceFeed. A connection that ends, goes
// silent or falls behind makes its node's keys unknown; so does any change of the nodes.
//
// Threads: look_up(), wrote() and stats() from any; the thread is "kvferry-view".
// Lifetime: config, router, log and what the link context refers to outlive it.
// Failure: none that callers see. Unknown is always a right answer, and the log says why.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/event_fd.hpp"
#include "base/log_sink.hpp"
#include "base/thread.hpp"
#include "redis/batch.hpp"
#include "redis/link.hpp"
#include "redis/presence_feed.hpp"
#include "redis/presence_state.hpp"
#include "redis/router.hpp"

namespace kvferry::redis {

class PresenceView {
 public:
  // Requires: config.presence_prefix. Fails with: kSystem.
  static Result<std::unique_ptr<PresenceView>> open(const Config& config, Router& router,
                                                    const LinkContext& links, LogSink& log);

  // Throws std::system_error without resources.
  void start();
  // Returns when the thread has ended. The links' stop signal must be raised before. Idempotent.
  void stop();

  // Requires: as many answers as keys.
  void look_up(std::span<const std::string_view> keys, std::span<Presence> answers) const;
  // To be called when all of a batch's commands have settled, before anybody hears of it: what it
  // stored is then not called absent.
  void wrote(Batch& batch);
  [[nodiscard]] PresenceStats stats() const { return state_.stats(); }

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
  };

  PresenceView(const Config& config, Router& router, const LinkContext& links, LogSink& log,
               EventFd wake);
  void run() noexcept;
  void loop();
  // Waits for a reply, wake() or the moment `until`; false: stop.
  bool wait(Nanos until);
  void follow_nodes();
  void dial(Watched& node, Nanos now);
  void listen(Watched& node);
  // Sends what is due; returns when to be called next.
  Nanos drive(Watched& node, Nanos now);
  // Ends the connection; the next is dialled after its pause, or after `pause_min`.
  void part(Watched& node, const Error& why, Nanos pause_min = 0);

  const Config& config_;
  Router& router_;
  const LinkContext links_;
  LogSink& log_;
  const EventFd wake_;
  PresenceState state_;
  std::vector<Watched> nodes_;  // of the thread
  // The router's generation that nodes_ is of; what callers compare with.
  std::atomic<std::uint64_t> generation_{~std::uint64_t{0}};
  Thread thread_;
};

}  // namespace kvferry::redis
