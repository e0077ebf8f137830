#pragma once
// MapRefresh: when the map of a topology is asked for again, and what follows from the answer. It
// also sends on what the router has parked.
//
// A machine: TopologyWatch drives it with a thread and a source, the simulation without. When
// somebody suspects that the map is out of date it is asked for soon, but never twice in a moment;
// otherwise now and then, and more often while a primary is lost or nobody answers.
//
// Threads: one, that of its driver.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "redis/router.hpp"

namespace kvferry::redis {

class MapRefresh {
 public:
  static constexpr Nanos kGapMin = 20 * kMilli;        // between two questions
  static constexpr Nanos kTroubledMin = 100 * kMilli;  // while a primary is lost or nobody answers;
  static constexpr Nanos kTroubledMax = 1 * kSecond;   // it doubles up to this
  static constexpr Nanos kSentinelPoll = 250 * kMilli;  // where nobody announces a failover

  MapRefresh(const Config& config, Router& router, LogSink& log)
      : config_(config), router_(router), log_(log) {}

  // As of TopologySource::ask().
  struct Question {
    std::vector<net::Endpoint> known;
    bool troubled;
  };
  // `suspected`: since the last call. What to ask now; then answer() must follow. nullopt: nothing.
  std::optional<Question> step(bool suspected, Nanos now);
  void answer(const Question& question, const Result<SlotMap>& map, Nanos now);
  // When to call step() again, if nobody suspects anything.
  [[nodiscard]] Nanos next() const noexcept { return std::min(refresh_at_, parked_at_); }

 private:
  [[nodiscard]] Nanos retry_delay() noexcept;
  // How long the answer may be trusted.
  Nanos trusted_for(const Question& question, const Outcome& outcome, Nanos now);

  const Config& config_;
  Router& router_;
  LogSink& log_;
  bool suspected_ = false;
  Nanos refresh_at_ = 0;
  Nanos refreshed_at_ = -kGapMin;
  Nanos parked_at_ = kNever;
  Nanos troubled_for_ = 0;  // how long it waited last, while something is lost
  std::string problem_;     // that was logged last
};

}  // namespace kvferry::redis
