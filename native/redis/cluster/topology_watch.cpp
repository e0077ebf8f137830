#include "redis/cluster/topology_watch.hpp"

#include <poll.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace kvferry::redis {
TopologyWatch::TopologyWatch(const Config& config, Router& router, LogSink& log,
                             std::unique_ptr<TopologySource> source, EventFd wake)
    : router_(router),
      log_(log),
      refresh_(config, router, log),
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
  while (!stopping_.load(std::memory_order_acquire)) {
    const bool announced = wait(refresh_.next());
    const bool suspected = suspected_.exchange(false, std::memory_order_acq_rel) || announced;
    const auto question = refresh_.step(suspected, monotonic_ns());
    if (!question) continue;
    const auto map = source_->ask(question->known, question->troubled);
    refresh_.answer(*question, map, monotonic_ns());
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

}  // namespace kvferry::redis
