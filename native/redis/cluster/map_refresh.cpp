#include "redis/cluster/map_refresh.hpp"

namespace kvferry::redis {

std::optional<MapRefresh::Question> MapRefresh::step(bool suspected, Nanos now) {
  suspected_ = suspected_ || suspected;
  if (suspected_) refresh_at_ = std::min(refresh_at_, refreshed_at_ + kGapMin);
  if (now < refresh_at_) {
    parked_at_ = router_.release_parked(now);
    return std::nullopt;
  }
  suspected_ = false;
  Question question{.known = {}, .troubled = false};
  for (const Router::Node& node : router_.nodes()) {
    if (node.server->available()) {
      question.known.push_back(node.server->endpoint());
    } else {
      question.troubled = question.troubled || node.server->role() == NodeRole::kPrimary;
    }
  }
  return question;
}

void MapRefresh::answer(const Question& question, const Result<SlotMap>& map, Nanos now) {
  const Outcome outcome = map ? router_.apply(*map, now) : Outcome(map.error());
  refreshed_at_ = now;
  refresh_at_ = add_time(now, trusted_for(question, outcome, now));
  parked_at_ = router_.release_parked(now);
}

Nanos MapRefresh::retry_delay() noexcept {
  troubled_for_ = std::clamp(2 * troubled_for_, kTroubledMin, kTroubledMax);
  return troubled_for_;
}

Nanos MapRefresh::trusted_for(const Question& question, const Outcome& outcome, Nanos now) {
  if (!outcome) {
    const Error& error = outcome.error();
    if (error.code != Errc::kClosed && problem_ != error.context) {
      problem_ = error.context;
      log_.push(LogLevel::kWarning, "the topology is not known: " + problem_);
    }
    router_.no_topology(error);
    return retry_delay();
  }
  problem_.clear();
  if (question.troubled) return retry_delay();
  troubled_for_ = 0;
  const Nanos usual =
      config_.topology == Topology::kSentinel ? kSentinelPoll : config_.topology_refresh;
  // Clients that started together shall not ask together for ever.
  return usual - now % (usual / 10 + 1);
}

}  // namespace kvferry::redis
