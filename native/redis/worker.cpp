#include "redis/worker.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace kvferry::redis {
namespace {

constexpr std::uint64_t kWakeToken = 0;  // connections are numbered from 1
constexpr Nanos kSweepInterval = 10 * kMilli;

}  // namespace

Result<std::unique_ptr<Worker>> Worker::open(Server& server, net::Resolver& resolver,
                                             std::size_t index) {
  auto poller = net::Poller::open();
  if (!poller) return poller.error();
  auto event = EventFd::open();
  if (!event) return event.error();
  std::unique_ptr<Worker> worker(
      new Worker(server, resolver, index, std::move(*poller), std::move(*event)));
  if (auto watched = worker->poller_.watch(worker->wake_event_.fd(), kWakeToken, true, false);
      !watched) {
    return watched.error();
  }
  return worker;
}

Worker::Worker(Server& server, net::Resolver& resolver, std::size_t index, net::Poller poller,
               EventFd wake_event)
    : server_(server),
      resolver_(resolver),
      index_(index),
      poller_(std::move(poller)),
      wake_event_(std::move(wake_event)) {
  const auto resolve = [this](std::uint64_t token, std::uint64_t dial) {
    resolver_.request(server_.config().endpoint, [this, token, dial](auto addresses) {
      {
        const std::lock_guard lock(mutex_);
        resolved_.push_back({token, dial, std::move(addresses)});
      }
      wake();
    });
  };
  const Config& config = server.config();
  const auto seed = static_cast<std::uint64_t>(monotonic_ns());
  const auto add = [&](std::uint64_t token, Connection::Role role) {
    connections_.push_back(
        {token, std::make_unique<Connection>(server, poller_, resolve, token, role, seed + token)});
  };
  if (index == config.workers) {
    add(1 + config.connections, Connection::Role::kSmall);
    return;
  }
  for (std::size_t data = index; data < config.connections; data += config.workers) {
    add(1 + data, Connection::Role::kData);
  }
}

void Worker::start() {
  thread_ = Thread("kvferry-io-" + std::to_string(index_), [this] { run(); });
}

void Worker::wake() noexcept {
  if (!wake_pending_.exchange(true, std::memory_order_acq_rel)) wake_event_.signal();
}

void Worker::release_withdrawn() noexcept {
  release_pending_.store(true, std::memory_order_release);
  wake();
}

void Worker::stop() noexcept {
  stopping_.store(true, std::memory_order_release);
  wake();
  thread_.join();
}

void Worker::run() noexcept {
  try {
    loop();
  } catch (const std::exception& problem) {
    server_.log(LogLevel::kError, std::string("an I/O thread failed: ") + problem.what());
    server_.fail_for_good("an I/O thread failed");
  }
  for (auto& owned : connections_) owned.connection->shut_down(monotonic_ns());
}

void Worker::loop() {
  Nanos sweep_at = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    Nanos now = monotonic_ns();
    Nanos next = kNever;
    for (auto& owned : connections_) next = std::min(next, owned.connection->tick(now));
    if (index_ == 0 && server_.queue().waiting() > 0) {
      if (now >= sweep_at) {
        server_.sweep(now);
        sweep_at = add_time(now, kSweepInterval);
      }
      next = std::min(next, sweep_at);
    }
    for (const net::Ready& ready : poller_.wait(next == kNever ? kNever : next - now)) {
      if (ready.token == kWakeToken) {
        wake_event_.clear();
      } else if (Connection* connection = find(ready.token)) {
        connection->on_ready(ready, monotonic_ns());
      }
    }
    now = monotonic_ns();
    if (wake_pending_.exchange(false, std::memory_order_acq_rel)) take_messages(now);
    for (auto& owned : connections_) owned.connection->pump(now);
  }
}

void Worker::take_messages(Nanos now) {
  std::vector<Resolved> resolved;
  {
    const std::lock_guard lock(mutex_);
    resolved = std::exchange(resolved_, {});
  }
  for (Resolved& message : resolved) {
    if (Connection* connection = find(message.token)) {
      connection->on_resolved(message.dial, std::move(message.addresses), now);
    }
  }
  if (release_pending_.exchange(false, std::memory_order_acq_rel)) {
    server_.sweep(now);
    for (auto& owned : connections_) owned.connection->release(now);
  }
}

Connection* Worker::find(std::uint64_t token) noexcept {
  const auto found = std::ranges::find(connections_, token, &Owned::token);
  return found == connections_.end() ? nullptr : found->connection.get();
}

}  // namespace kvferry::redis
