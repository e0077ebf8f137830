#include "redis/cluster/topology_watch.hpp"

#include <poll.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace kvferry::redis {
namespace {

constexpr Nanos kGapMin = 20 * kMilli;         // between two looks, however many suspect
constexpr Nanos kTroubledMin = 100 * kMilli;   // while a primary is lost or nobody answers;
constexpr Nanos kTroubledMax = 1 * kSecond;    // it doubles up to this
constexpr Nanos kSentinelPoll = 250 * kMilli;  // where nobody announces a failover

}  // namespace

TopologyWatch::TopologyWatch(const Config& config, Router& router, LogSink& log,
                             std::unique_ptr<TopologySource> source, EventFd wake)
    : config_(config),
      router_(router),
      log_(log),
      source_(std::move(source)),
      wake_(std::move(wake)) {}

void TopologyWatch::start() {
  thread_ = Thread("kvferry-ctl", [this] { run(); });
}

void TopologyWatch::suspect() {
  if (!suspected_.exchange(true, std::memory_order_acq_rel)) wake_.signal();
}

void TopologyWatch::stop() {
  stopping_.store(true, std::memory_order_release);
  wake_.signal();
  thread_.join();
  source_.reset();  // and its connections
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
  Nanos refresh_at = 0;
  Nanos refreshed_at = -kGapMin;
  Nanos parked_at = kNever;
  bool suspected = false;
  while (!stopping_.load(std::memory_order_acquire)) {
    const bool announced = wait(std::min(refresh_at, parked_at));
    suspected = suspected_.exchange(false, std::memory_order_acq_rel) || announced || suspected;
    if (suspected) refresh_at = std::min(refresh_at, refreshed_at + kGapMin);
    if (monotonic_ns() >= refresh_at) {
      suspected = false;
      const Nanos good_for = refresh();
      refreshed_at = monotonic_ns();
      refresh_at = add_time(refreshed_at, good_for);
    }
    parked_at = router_.release_parked(monotonic_ns());
  }
}

bool TopologyWatch::wait(Nanos until) {
  std::vector<pollfd> fds{{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
  for (const int fd : source_->announcements()) {
    fds.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  }
  constexpr Nanos kLongest = 60 * kSecond;
  const Nanos patience = std::clamp<Nanos>(until - monotonic_ns(), 0, kLongest);
  const auto timeout_ms = static_cast<int>((patience + kMilli - 1) / kMilli);
  if (::poll(fds.data(), fds.size(), timeout_ms) <= 0) return false;
  if (fds[0].revents == 0) return true;
  wake_.clear();
  return false;
}

Nanos TopologyWatch::retry_delay() noexcept {
  troubled_for_ = std::clamp(2 * troubled_for_, kTroubledMin, kTroubledMax);
  return troubled_for_;
}

Nanos TopologyWatch::refresh() {
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
  const Outcome outcome = map ? router_.apply(*map, monotonic_ns()) : Outcome(map.error());
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
  if (troubled) return retry_delay();
  troubled_for_ = 0;
  const Nanos usual =
      config_.topology == Topology::kSentinel ? kSentinelPoll : config_.topology_refresh;
  // Clients that started together shall not ask together for ever.
  return usual - monotonic_ns() % (usual / 10 + 1);
}

}  // namespace kvferry::redis
