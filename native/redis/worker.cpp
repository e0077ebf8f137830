#include "redis/worker.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/best_effort.hpp"

namespace kvferry::redis {
namespace {

constexpr std::uint64_t kWakeToken = 0;  // connections are numbered from 1
constexpr Nanos kSweepInterval = 10 * kMilli;

}  // namespace

Result<std::unique_ptr<Worker>> Worker::open(const Surroundings& shared, std::size_t index) {
  auto poller = net::Poller::open();
  if (!poller) return poller.error();
  auto event = EventFd::open();
  if (!event) return event.error();
  std::unique_ptr<Worker> worker(new Worker(shared, index, std::move(*poller), std::move(*event)));
  if (auto watched = worker->poller_.watch(worker->wake_event_.fd(), kWakeToken, true, false);
      !watched) {
    return watched.error();
  }
  worker->follow_router(monotonic_ns());
  return worker;
}

Worker::Worker(const Surroundings& shared, std::size_t index, net::Poller poller,
               EventFd wake_event)
    : shared_(shared),
      index_(index),
      poller_(std::move(poller)),
      environment_{.watcher = poller_,
                   .transport = shared.transport,
                   .resolve = {},
                   .ask_credentials = {},
                   .credentials = shared.credentials},
      wake_event_(std::move(wake_event)) {
  environment_.resolve = [this](const net::Endpoint& endpoint, std::uint64_t token,
                                std::uint64_t dial) {
    const auto take = [this, token, dial](auto addresses) {
      {
        const std::lock_guard lock(mutex_);
        resolved_.push_back({token, dial, std::move(addresses)});
      }
      wake();
    };
    if (shared_.same_host != nullptr) return shared_.same_host->request(take);
    shared_.resolver.request(endpoint, take);
  };
  environment_.ask_credentials = [this](std::uint64_t token, std::uint64_t dial) {
    shared_.credentials->request([this, token, dial](const Result<Credentials>& credentials) {
      {
        const std::lock_guard lock(mutex_);
        authorized_.push_back({token, dial, credentials});
      }
      wake();
    });
  };
}

void Worker::follow_router(Nanos now) {
  const std::uint64_t generation = shared_.router.generation();
  if (generation_ == generation) return;
  const std::vector<Router::Node> nodes = shared_.router.nodes();
  for (Owned& owned : connections_) {
    if (owned.server->retired()) owned.connection->shut_down(now);
  }
  std::erase_if(connections_, [](const Owned& owned) { return owned.server->retired(); });
  for (const Router::Node& node : nodes) {
    const auto same = [&](const Owned& owned) { return owned.server == node.server; };
    if (std::ranges::none_of(connections_, same)) add_node(node);
  }
  generation_ = generation;
}

void Worker::add_node(const Router::Node& node) {
  const auto seed = static_cast<std::uint64_t>(monotonic_ns());
  const auto add = [&](Connection::Role role, bool first) {
    const std::uint64_t token = ++tokens_;
    connections_.push_back({token, node.server,
                            std::make_unique<Connection>(*node.server, environment_, token, role,
                                                         first, seed + token * 31 + index_)});
  };
  const Config& config = shared_.config;
  if (index_ == config.workers) return add(Connection::Role::kSmall, false);
  for (std::size_t data = 0; data < config.connections; ++data) {
    if ((data + node.ordinal) % config.workers == index_) {
      add(Connection::Role::kData, data == 0);
    }
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
    best_effort([&] {
      shared_.log.push(LogLevel::kError, std::string("an I/O thread failed: ") + problem.what());
    });
    best_effort([&] { shared_.router.fail_for_good("an I/O thread failed"); });
  }
  for (auto& owned : connections_) {
    try {
      owned.connection->shut_down(monotonic_ns());
    } catch (const std::exception&) {  // it was said already what is wrong
    }
  }
}

// What cannot be had for one connection may be there for the others, and for this one later.
template <typename Act>
bool Worker::guard(Connection& connection, Act act) {
  try {
    act(connection);
    return true;
  } catch (const std::bad_alloc&) {
    connection.on_no_memory(monotonic_ns());
    return false;
  }
}

void Worker::loop() {
  Nanos sweep_at = 0;
  // Small commands wake the last worker alone.
  const bool sweeps = index_ == 0 || index_ == shared_.config.workers;
  while (!stopping_.load(std::memory_order_acquire)) {
    Nanos now = monotonic_ns();
    Nanos next = kNever;
    for (auto& owned : connections_) {
      const auto tick = [&](Connection& connection) {
        next = std::min(next, connection.tick(now));
      };
      if (!guard(*owned.connection, tick)) next = now;  // it says then when it wants to be called
    }
    if (sweeps && shared_.router.waiting() > 0) {
      if (now >= sweep_at) {
        best_effort([&] { shared_.router.sweep(now); });
        sweep_at = add_time(now, kSweepInterval);
      }
      next = std::min(next, sweep_at);
    }
    // Nodes that could not be followed for want of memory.
    const bool behind = generation_ != shared_.router.generation();
    if (behind) next = std::min(next, add_time(now, kSweepInterval));
    for (const net::Ready& ready : poller_.wait(next == kNever ? kNever : next - now)) {
      if (ready.token == kWakeToken) {
        wake_event_.clear();
      } else if (Connection* connection = find(ready.token)) {
        guard(*connection, [&](Connection& one) { one.on_ready(ready, monotonic_ns()); });
      }
    }
    now = monotonic_ns();
    if (wake_pending_.exchange(false, std::memory_order_acq_rel)) {
      best_effort([&] { take_messages(now); });
    }
    best_effort([&] { follow_router(now); });
    for (auto& owned : connections_) {
      guard(*owned.connection, [&](Connection& connection) { connection.pump(now); });
    }
  }
}

void Worker::take_messages(Nanos now) {
  std::vector<Resolved> resolved;
  std::vector<Authorized> authorized;
  {
    const std::lock_guard lock(mutex_);
    resolved = std::exchange(resolved_, {});
    authorized = std::exchange(authorized_, {});
  }
  for (const Authorized& message : authorized) {
    if (Connection* connection = find(message.token)) {
      connection->on_credentials(message.dial, message.credentials, now);
    }
  }
  for (Resolved& message : resolved) {
    if (Connection* connection = find(message.token)) {
      connection->on_resolved(message.dial, std::move(message.addresses), now);
    }
  }
  if (release_pending_.exchange(false, std::memory_order_acq_rel)) {
    shared_.router.sweep(now);
    for (auto& owned : connections_) owned.connection->release(now);
  }
}

Connection* Worker::find(std::uint64_t token) noexcept {
  const auto found = std::ranges::find(connections_, token, &Owned::token);
  return found == connections_.end() ? nullptr : found->connection.get();
}

}  // namespace kvferry::redis
