#include "sim/worker.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::sim {
namespace {

constexpr Nanos kSweepInterval = 10 * kMilli;  // as in redis/worker.cpp
constexpr int kIdleRoundsMax = 1000;

}  // namespace

SimWorker::SimWorker(const Surroundings& shared, std::size_t index)
    : shared_(shared),
      index_(index),
      environment_{.watcher = *this,
                   .transport = shared.network,
                   .resolve = {},
                   .ask_credentials = {},
                   .credentials = shared.credentials,
                   .worker = index} {
  environment_.resolve = [this](const net::Endpoint& endpoint, std::uint64_t token,
                                std::uint64_t dial) {
    shared_.look_up(*this, token, dial, endpoint.port);
  };
  environment_.ask_credentials = [this](std::uint64_t token, std::uint64_t dial) {
    shared_.credentials->request([this, token, dial](const auto& credentials) {
      authorized_.push_back({token, dial, credentials});
      wake_pending_ = true;
    });
    shared_.ask_provider();
  };
  follow_router();
}

bool SimWorker::has_ready() const noexcept {
  for (std::size_t index = 0; index < shared_.network.size(); ++index) {
    const Wire& wire = shared_.network.wire(index);
    if (wire.watcher != this || !wire.client_holds) continue;
    if ((wire.wants_readable && wire.readable()) || (wire.wants_writable && wire.writable())) {
      return true;
    }
  }
  return false;
}

bool SimWorker::runnable() const noexcept {
  return phase_ != Phase::kWait || wake_pending_ || now() >= next_ || has_ready();
}

void SimWorker::step() {
  do {
    run_phase();
  } while (!shared_.context.plan.fine && phase_ != Phase::kWait);
}

void SimWorker::run_phase() {
  switch (phase_) {
    case Phase::kWait:
      return collect_ready();
    case Phase::kReady:
      if (at_ < ready_.size()) {
        const net::Ready& ready = ready_[at_++];
        if (redis::Connection* connection = touch(ready.token)) connection->on_ready(ready, now());
        return;
      }
      phase_ = Phase::kMessages;
      return;
    case Phase::kMessages:
      if (std::exchange(wake_pending_, false)) take_messages();
      follow_router();
      phase_ = Phase::kTick;
      at_ = 0;
      return;
    case Phase::kTick:
      while (at_ < connections_.size()) {
        Owned& owned = connections_[at_++];
        if (!all_touched_ && owned.due > now()) continue;
        owned.touched = true;
        owned.connection->tick(now());
        return;
      }
      all_touched_ = false;
      phase_ = Phase::kPump;
      at_ = 0;
      return;
    case Phase::kPump:
      while (at_ < connections_.size()) {
        Owned& owned = connections_[at_++];
        if (!std::exchange(owned.touched, false)) continue;
        owned.connection->pump(now());
        owned.due = owned.connection->tick(now());
        return;
      }
      return end_of_round();
  }
}

void SimWorker::end_of_round() {
  next_ = kNever;
  for (const Owned& owned : connections_) next_ = std::min(next_, owned.due);
  if (shared_.router.waiting() > 0) {
    if (now() >= sweep_at_) {
      shared_.router.sweep(now());
      sweep_at_ = now() + kSweepInterval;
    }
    next_ = std::min(next_, sweep_at_);
  }
  if (shared_.context.plant == Plant::kLateTimer && next_ != kNever) next_ += 100 * kMilli;
  phase_ = Phase::kWait;
  const bool idle = !wake_pending_ && next_ <= now() && !has_ready();
  idle_rounds_ = idle ? idle_rounds_ + 1 : 0;
  if (idle_rounds_ > kIdleRoundsMax) shared_.context.journal.fail("a worker spins");
}

void SimWorker::collect_ready() {
  ready_.clear();
  for (std::size_t index = 0; index < shared_.network.size(); ++index) {
    const Wire& wire = shared_.network.wire(index);
    if (wire.watcher != this || !wire.client_holds) continue;
    // Errors are told whatever is watched.
    const bool readable = wire.readable() && (wire.wants_readable || wire.reset);
    const bool writable = wire.writable() && wire.wants_writable;
    if (readable || writable) ready_.push_back({wire.token, readable, writable});
  }
  phase_ = Phase::kReady;
  at_ = 0;
}

void SimWorker::take_messages() {
  const auto told = std::exchange(told_, {});
  for (Owned& owned : connections_) {
    if (std::ranges::find(told, owned.server.get()) != told.end()) owned.touched = true;
  }
  if (std::exchange(told_all_, false)) all_touched_ = true;
  for (const Authorized& message : std::exchange(authorized_, {})) {
    if (redis::Connection* connection = touch(message.token)) {
      connection->on_credentials(message.dial, message.credentials, now());
    }
  }
  for (Resolved& message : std::exchange(resolved_, {})) {
    if (redis::Connection* connection = touch(message.token)) {
      connection->on_resolved(message.dial, std::move(message.addresses), now());
    }
  }
  if (!std::exchange(release_pending_, false)) return;
  if (shared_.context.plant == Plant::kForgetCancel) return;
  all_touched_ = true;
  shared_.router.sweep(now());
  for (Owned& owned : connections_) owned.connection->release(now());
}

void SimWorker::follow_router() {
  const std::uint64_t generation = shared_.router.generation();
  if (std::exchange(generation_, generation) == generation) return;
  all_touched_ = true;
  const std::vector<redis::Router::Node> nodes = shared_.router.nodes();
  for (Owned& owned : connections_) {
    if (owned.server->retired()) owned.connection->shut_down(now());
  }
  std::erase_if(connections_, [](const Owned& owned) { return owned.server->retired(); });
  for (const redis::Router::Node& node : nodes) {
    const auto same = [&](const Owned& owned) { return owned.server == node.server; };
    if (std::ranges::none_of(connections_, same)) add_node(node);
  }
}

void SimWorker::add_node(const redis::Router::Node& node) {
  servers_.push_back(node.server);
  const auto add = [&](redis::Connection::Role role, bool first) {
    const std::uint64_t token = ++tokens_;
    connections_.push_back(
        {token, node.server,
         std::make_unique<redis::Connection>(*node.server, environment_, token, role, first,
                                             shared_.context.random.next() % 1'000'000)});
  };
  if (index_ == shared_.config.workers) return add(redis::Connection::Role::kSmall, false);
  for (std::size_t data = 0; data < shared_.config.connections; ++data) {
    if ((data + node.ordinal) % shared_.config.workers == index_) {
      add(redis::Connection::Role::kData, data == 0);
    }
  }
}

void SimWorker::on_resolved(std::uint64_t token, std::uint64_t dial,
                            Result<std::vector<net::Address>> addresses) {
  resolved_.push_back({token, dial, std::move(addresses)});
  wake_pending_ = true;
}

void SimWorker::shut_down() {
  for (Owned& owned : connections_) owned.connection->shut_down(now());
}

redis::Connection* SimWorker::touch(std::uint64_t token) noexcept {
  const auto found = std::ranges::find(connections_, token, &Owned::token);
  if (found == connections_.end()) return nullptr;
  found->touched = true;
  return found->connection.get();
}

Outcome SimWorker::watch(int fd, std::uint64_t token, bool readable, bool writable) noexcept {
  Wire& wire = shared_.network.wire(static_cast<std::size_t>(fd));
  wire.watcher = this;
  wire.token = token;
  wire.wants_readable = readable;
  wire.wants_writable = writable;
  return Done{};
}

void SimWorker::forget(int fd) noexcept {
  shared_.network.wire(static_cast<std::size_t>(fd)).watcher = nullptr;
}

}  // namespace kvferry::sim
