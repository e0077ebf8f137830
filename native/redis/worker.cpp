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

constexpr Nanos kSweepInterval = 10 * kMilli;

}  // namespace

Worker::Worker(const Surroundings& shared, std::size_t index, net::Watcher& watcher,
               std::function<void()> signal, Nanos now)
    : shared_(shared),
      index_(index),
      signal_(std::move(signal)),
      environment_{.watcher = watcher,
                   .transport = shared.transport,
                   .resolve = {},
                   .ask_credentials = {},
                   .credentials = shared.credentials,
                   .worker = index} {
  environment_.resolve = [this](const net::Endpoint& endpoint, std::uint64_t token,
                                std::uint64_t dial) {
    shared_.resolve(endpoint, [this, token, dial](auto addresses) {
      {
        const std::lock_guard lock(mutex_);
        resolved_.push_back({token, dial, std::move(addresses)});
      }
      this->signal();
    });
  };
  environment_.ask_credentials = [this](std::uint64_t token, std::uint64_t dial) {
    shared_.credentials->request([this, token, dial](const Result<Credentials>& credentials) {
      {
        const std::lock_guard lock(mutex_);
        authorized_.push_back({token, dial, credentials});
      }
      this->signal();
    });
  };
  follow_router(now);
}

// --- What others tell it ---

void Worker::wake() noexcept {
  {
    const std::lock_guard lock(mutex_);
    told_count_ = told_.size() + 1;
  }
  signal();
}

void Worker::signal() noexcept {
  if (!wake_pending_.exchange(true, std::memory_order_acq_rel)) signal_();
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

// --- A round ---

bool Worker::step(std::span<const net::Ready>& ready, Nanos now) {
  if (!ready.empty()) {
    const net::Ready one = ready.front();
    ready = ready.subspan(1);
    if (Owned* owned = find(one.token)) {
      touch(*owned);
      guard(*owned->connection, now,
            [&](Connection& connection) { connection.on_ready(one, now); });
    }
    return true;
  }
  if (!std::exchange(begun_, true)) {
    begin_round(now);
    return true;
  }
  if (served_ < touched_.size()) {
    serve(connections_[touched_[served_++]], now);
    return true;
  }
  visits_.fetch_add(touched_.size(), std::memory_order_relaxed);
  touched_.clear();
  served_ = 0;
  begun_ = false;
  return false;
}

void Worker::begin_round(Nanos now) {
  if (wake_pending_.exchange(false, std::memory_order_acq_rel)) {
    best_effort([&] { take_messages(now); });
  }
  best_effort([&] { follow_router(now); });
  touch_due(now);
}

Nanos Worker::next_round(Nanos now) {
  Nanos next = due_;
  if (shared_.router.waiting() > 0) {
    if (now >= sweep_at_) {
      best_effort([&] { shared_.router.sweep(now); });
      sweep_at_ = add_time(now, kSweepInterval);
    }
    next = std::min(next, sweep_at_);
  }
  // Nodes that could not be followed for want of memory.
  const bool behind = generation_ != shared_.router.generation();
  return behind ? std::min(next, add_time(now, kSweepInterval)) : next;
}

// What cannot be had for one connection may be there for the others, and for this one later.
template <typename Act>
void Worker::guard(Connection& connection, Nanos now, Act act) {
  try {
    act(connection);
  } catch (const std::bad_alloc&) {
    connection.on_no_memory(now);
  }
}

void Worker::touch_due(Nanos now) noexcept {
  if (now < due_ && !all_touched_) return;
  due_ = kNever;
  for (Owned& owned : connections_) {
    if (owned.due <= now || all_touched_) {
      touch(owned);
    } else {
      due_ = std::min(due_, owned.due);
    }
  }
  all_touched_ = false;
}

void Worker::serve(Owned& owned, Nanos now) {
  owned.touched = false;
  // Without memory it says the next time when it wants to be called.
  const bool due = std::exchange(owned.due, now) <= now;
  guard(*owned.connection, now, [&](Connection& connection) {
    if (due) connection.tick(now);  // what is overdue is so before anything is sent
    connection.pump(now);
    owned.due = connection.tick(now);
  });
  due_ = std::min(due_, owned.due);
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
    if (std::ranges::none_of(connections_, same)) add_node(node, now);
  }
  generation_ = generation;
}

void Worker::add_node(const Router::Node& node, Nanos now) {
  const auto seed = static_cast<std::uint64_t>(now);
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

// --- The end ---

void Worker::fail(std::string_view problem) noexcept {
  best_effort(
      [&] { shared_.log.push(LogLevel::kError, "an I/O thread failed: " + std::string(problem)); });
  best_effort([&] { shared_.router.fail_for_good("an I/O thread failed"); });
}

void Worker::shut_down(Nanos now) noexcept {
  for (Owned& owned : connections_) {
    try {
      owned.connection->shut_down(now);
    } catch (const std::exception&) {  // it was said already what is wrong
    }
  }
}

}  // namespace kvferry::redis
