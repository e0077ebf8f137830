#include "redis/worker.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <span>
#include <tuple>
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
                   .credentials = shared.credentials,
                   .worker = index},
      wake_event_(std::move(wake_event)) {
  environment_.resolve = [this](const net::Endpoint& endpoint, std::uint64_t token,
                                std::uint64_t dial) {
    const auto take = [this, token, dial](auto addresses) {
      {
        const std::lock_guard lock(mutex_);
        resolved_.push_back({token, dial, std::move(addresses)});
      }
      signal();
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
      signal();
    });
  };
}

void Worker::follow_router(Nanos now) {
  const std::uint64_t generation = shared_.router.generation();
  if (generation_ == generation) return;
  const std::vector<Router::Node> nodes = shared_.router.nodes();
  touched_.clear();  // what it refers to moves
  all_touched_ = true;
  for (Owned& owned : connections_) {
    owned.touched = false;
    if (owned.server->retired()) owned.connection->shut_down(now);
  }
  std::erase_if(connections_, [](const Owned& owned) { return owned.server->retired(); });
  std::erase_if(first_tokens_, [this](const auto& entry) {
    const Owned* owned = find(entry.second);
    return owned == nullptr || owned->server.get() != entry.first;
  });
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
    touched_.reserve(connections_.size() + 1);  // touching takes no memory
    first_tokens_.try_emplace(node.server.get(), token);
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
  {
    const std::lock_guard lock(mutex_);
    told_count_ = told_.size() + 1;
  }
  signal();
}

void Worker::signal() noexcept {
  if (!wake_pending_.exchange(true, std::memory_order_acq_rel)) wake_event_.signal();
}

void Worker::wake(const Server& server) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto told = std::span(told_).first(std::min(told_count_, told_.size()));
    if (std::ranges::find(told, &server) == told.end()) {
      if (told_count_ < told_.size()) told_[told_count_] = &server;
      ++told_count_;
    }
  }
  signal();
}

void Worker::release_withdrawn() noexcept {
  release_pending_.store(true, std::memory_order_release);
  signal();
}

void Worker::stop() noexcept {
  stopping_.store(true, std::memory_order_release);
  signal();
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
void Worker::guard(Connection& connection, Act act) {
  try {
    act(connection);
  } catch (const std::bad_alloc&) {
    connection.on_no_memory(monotonic_ns());
  }
}

void Worker::loop() {
  Nanos sweep_at = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    Nanos now = monotonic_ns();
    Nanos next = due_;
    if (shared_.router.waiting() > 0) {
      if (now >= sweep_at) {
        best_effort([&] { shared_.router.sweep(now); });
        sweep_at = add_time(now, kSweepInterval);
      }
      next = std::min(next, sweep_at);
    }
    // Nodes that could not be followed for want of memory.
    const bool behind = generation_ != shared_.router.generation();
    if (behind) next = std::min(next, add_time(now, kSweepInterval));
    const auto all_ready = poller_.wait(next == kNever ? kNever : next - now);
    wake_ups_.fetch_add(1, std::memory_order_relaxed);
    for (const net::Ready& ready : all_ready) {
      if (ready.token == kWakeToken) {
        wake_event_.clear();
      } else if (Owned* owned = find(ready.token)) {
        touch(*owned);
        guard(*owned->connection, [&](Connection& one) { one.on_ready(ready, monotonic_ns()); });
      }
    }
    now = monotonic_ns();
    if (wake_pending_.exchange(false, std::memory_order_acq_rel)) {
      best_effort([&] { take_messages(now); });
    }
    best_effort([&] { follow_router(now); });
    touch_due(now);
    serve(now);
  }
}

// Timers that are due fire before the connection sends.
void Worker::touch_due(Nanos now) {
  if (now < due_ && !all_touched_) return;
  due_ = kNever;
  for (Owned& owned : connections_) {
    if (owned.due <= now || all_touched_) {
      touch(owned);
      guard(*owned.connection, [&](Connection& connection) { connection.tick(now); });
    } else {
      due_ = std::min(due_, owned.due);
    }
  }
  all_touched_ = false;
}

void Worker::serve(Nanos now) {
  visits_.fetch_add(touched_.size(), std::memory_order_relaxed);
  for (const std::size_t index : touched_) {
    Owned& owned = connections_[index];
    owned.touched = false;
    owned.due = now;  // without memory it says the next time when it wants to be called
    guard(*owned.connection, [&](Connection& connection) {
      connection.pump(now);
      owned.due = connection.tick(now);
    });
    due_ = std::min(due_, owned.due);
  }
  touched_.clear();
}

void Worker::take_messages(Nanos now) {
  std::vector<Resolved> resolved;
  std::vector<Authorized> authorized;
  std::array<const Server*, std::tuple_size_v<decltype(told_)>> told{};
  std::size_t told_count = 0;
  {
    const std::lock_guard lock(mutex_);
    resolved = std::exchange(resolved_, {});
    authorized = std::exchange(authorized_, {});
    told = told_;
    told_count = std::exchange(told_count_, 0);
  }
  if (told_count > told.size()) {
    all_touched_ = true;
  } else {
    for (const Server* server : std::span(told).first(told_count)) touch(server);
  }
  for (const Authorized& message : authorized) {
    if (Owned* owned = find(message.token)) {
      touch(*owned);
      owned->connection->on_credentials(message.dial, message.credentials, now);
    }
  }
  for (Resolved& message : resolved) {
    if (Owned* owned = find(message.token)) {
      touch(*owned);
      owned->connection->on_resolved(message.dial, std::move(message.addresses), now);
    }
  }
  if (release_pending_.exchange(false, std::memory_order_acq_rel)) {
    all_touched_ = true;
    shared_.router.sweep(now);
    for (auto& owned : connections_) owned.connection->release(now);
  }
}

Worker::Owned* Worker::find(std::uint64_t token) noexcept {
  const auto found = std::ranges::lower_bound(connections_, token, {}, &Owned::token);
  return found == connections_.end() || found->token != token ? nullptr : &*found;
}

void Worker::touch(Owned& owned) noexcept {
  if (std::exchange(owned.touched, true)) return;
  touched_.push_back(static_cast<std::size_t>(&owned - connections_.data()));
}

void Worker::touch(const Server* server) noexcept {
  const auto first = first_tokens_.find(server);
  if (first == first_tokens_.end()) return;
  auto owned = std::ranges::lower_bound(connections_, first->second, {}, &Owned::token);
  for (; owned != connections_.end() && owned->server.get() == server; ++owned) touch(*owned);
}

}  // namespace kvferry::redis
