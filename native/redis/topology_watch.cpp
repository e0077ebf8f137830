#include "redis/topology_watch.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace kvferry::redis {
namespace {

constexpr Nanos kGapMin = 50 * kMilli;         // between two looks, however many suspect
constexpr Nanos kTroubledMin = 100 * kMilli;   // while a primary is lost or nobody answers;
constexpr Nanos kTroubledMax = 1 * kSecond;    // it doubles up to this
constexpr Nanos kSentinelPoll = 100 * kMilli;  // an old master may still take writes that long

}  // namespace

TopologyWatch::TopologyWatch(const Config& config, Router& router, LogSink& log,
                             std::unique_ptr<TopologySource> source)
    : config_(config), router_(router), log_(log), source_(std::move(source)) {}

void TopologyWatch::start() {
  thread_ = Thread("kvferry-ctl", [this] { run(); });
}

void TopologyWatch::suspect() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(suspected_, true)) return;
  changed_.notify_one();
}

void TopologyWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

void TopologyWatch::run() noexcept {
  try {
    loop();
  } catch (const std::exception& problem) {
    log_.push(LogLevel::kError, std::string("the control thread failed: ") + problem.what());
    router_.fail_for_good("the control thread failed");
  }
}

void TopologyWatch::loop() {
  Nanos look_at = 0;
  Nanos looked_at = 0;
  Nanos parked_at = kNever;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      for (;;) {
        if (stopping_) return;
        if (suspected_) look_at = std::min(look_at, looked_at + kGapMin);
        const Nanos until = std::min(look_at, parked_at);
        const Nanos now = monotonic_ns();
        if (now >= until) break;
        const auto patience = std::min<Nanos>(until - now, 60 * kSecond);
        const bool was_suspected = suspected_;
        changed_.wait_for(lock, std::chrono::nanoseconds(patience),
                          [&] { return stopping_ || suspected_ != was_suspected; });
        if (suspected_ && !was_suspected) parked_at = std::min(parked_at, monotonic_ns());
      }
      if (monotonic_ns() >= look_at) suspected_ = false;
    }
    if (monotonic_ns() >= look_at) {
      const Nanos good_for = look();
      looked_at = monotonic_ns();
      look_at = add_time(looked_at, good_for);
    }
    parked_at = router_.release_parked(monotonic_ns());
  }
}

Nanos TopologyWatch::soon() noexcept {
  troubled_for_ = std::clamp(2 * troubled_for_, kTroubledMin, kTroubledMax);
  return troubled_for_;
}

Nanos TopologyWatch::look() {
  std::vector<net::Endpoint> known;
  bool troubled = false;
  for (const Router::Node& node : router_.nodes()) {
    if (node.server->available()) {
      known.push_back(node.server->endpoint());
    } else {
      troubled = troubled || node.server->role() == NodeRole::kPrimary;
    }
  }
  auto map = source_->ask(known, troubled);
  if (!map) {
    if (map.error().code != Errc::kClosed && problem_ != map.error().context) {
      problem_ = map.error().context;
      log_.push(LogLevel::kWarning, "the topology is not known: " + problem_);
    }
    router_.no_topology(map.error());
    return soon();
  }
  problem_.clear();
  router_.apply(*map, monotonic_ns());
  if (troubled) return soon();
  troubled_for_ = 0;
  const Nanos usual =
      config_.topology == Topology::kSentinel ? kSentinelPoll : config_.topology_refresh;
  // Clients that started together shall not ask together for ever.
  return usual - monotonic_ns() % (usual / 10 + 1);
}

}  // namespace kvferry::redis
