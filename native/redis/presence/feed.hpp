#pragma once
// PresenceFeed: the machine of one connection of the presence view: what to send to its node, and
// what the replies and announcements mean to PresenceState.
//
// CLIENT TRACKING ON BCAST PREFIX comes first, so that nothing changes unseen; then SCAN takes the
// snapshot. EXISTS asks about keys that changed. A beat, every second, tells how old the news may
// be: PING, or in a cluster CLUSTER INFO and CLUSTER NODES, which say what the node serves. Every
// snapshot there ends with one, because SCAN says nothing of keys that are on their way elsewhere.
// Where changes are limited it also asks INFO for the number of views, and knows and asks nothing
// while there is too much.
//
// Threads: the view's. Failure: an Error ends the connection; kServer is a refusal in the server's
// words, which it would repeat.
// Source: "Client-side caching" and CLIENT TRACKING in the Redis and Valkey references.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "redis/presence/load.hpp"
#include "redis/presence/state.hpp"
#include "resp/value.hpp"

namespace kvferry::redis {

class PresenceFeed {
 public:
  static constexpr Nanos kBeat = 1 * kSecond;
  static constexpr Nanos kSnapshotGap = 200 * kMilli;    // between the begins of two
  static constexpr Nanos kOverflowPause = 60 * kSecond;  // after one that found too many keys
  static constexpr Nanos kCountEvery = 5 * kSecond;      // the views of the server

  // A fresh RESP3 connection. `silence_max`: how long an answer may take. `load_max`: see
  // PresenceLoad.
  PresenceFeed(PresenceState& state, PresenceState::NodeId node, bool clustered, Nanos silence_max,
               Nanos now, std::uint64_t load_max = 0);

  // What to send now; empty: nothing.
  std::string next(Nanos now);
  // Takes a reply or a push. Fails with: kServer, kProtocol.
  Outcome receive(const resp::Value& value, Nanos now);

  // When to call next() at the latest, whatever arrives.
  [[nodiscard]] Nanos wake_at() const;
  // Whether an answer is overdue.
  [[nodiscard]] bool silent(Nanos now) const noexcept {
    return !owed_.empty() && now - owed_.front().since > silence_max_;
  }
  // Whether all that it waits for are changes, and answers about them.
  [[nodiscard]] bool settled() const noexcept { return tracking_ && !scanning_; }
  [[nodiscard]] const PresenceLoad& load() const noexcept { return load_; }

 private:
  enum class Kind : std::uint8_t {
    kTracking,
    kPing,
    kInfo,
    kNodes,
    kLastNodes,
    kScan,
    kExists,
    kClients,
  };
  struct Owed {
    Kind kind;
    Nanos since;
  };

  void ask(std::string& out, Kind kind, std::initializer_list<std::string_view> words, Nanos now);
  void beat(std::string& out, Kind kind, Nanos now);
  void end_snapshot();
  void weigh(Nanos now);
  Outcome on_push(const resp::Value& push);
  Outcome on_reply(Kind kind, const resp::Value& reply, Nanos now);
  Outcome on_scan(const resp::Value& reply, Nanos now);
  Outcome on_exists(const resp::Value& reply, Nanos now);

  PresenceState& state_;
  const PresenceState::NodeId node_;
  const bool clustered_;
  const Nanos silence_max_;
  const std::string pattern_;
  std::deque<Owed> owed_;  // the replies to come, in order
  PresenceLoad load_;
  Nanos count_at_ = 0;  // when the views are to be counted
  bool tracking_ = false;
  bool cluster_up_ = false;
  int beats_ = 0;  // on their way
  Nanos beat_at_ = 0;
  bool scanning_ = false;
  bool scanned_ = false;     // to its end; the node must still serve these slots
  std::string cursor_ = {};  // to go on from; empty: SCAN is on its way
  Nanos scan_at_ = 0;        // not before
};

// `text` as a glob pattern that matches it alone.
[[nodiscard]] std::string escape_glob(std::string_view text);

}  // namespace kvferry::redis
