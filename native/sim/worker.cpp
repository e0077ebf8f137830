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
                   .credentials = shared.credentials} {
  environment_.resolve = [this](const net::Endpoint& endpoint, std::uint64_t token,
                                std::uint64_t dial) {
    shared_.look_up(*this, token, dial, endpoint.port);
  };
  environment_.ask_credentials = [this](std::uint64_t token, std::uint64_t dial) {
    shared_.credentials->request([this, token, dial](const auto& credentials) {
      authorized_.push_back({token, dial, credentials});
      wake();
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
    case Phase::kTick:
      if (at_ == 0) next_ = kNever;
      if (at_ < connections_.size()) {
        next_ = std::min(next_, connections_[at_++].connection->tick(now()));
        return;
      }
      return end_of_ticks();
    case Phase::kWait:
      return collect_ready();
    case Phase::kReady:
      if (at_ < ready_.size()) {
        const net::Ready& ready = ready_[at_++];
        if (redis::Connection* connection = find(ready.token)) connection->on_ready(ready, now());
        return;
      }
      phase_ = Phase::kMessages;
      return;
    case Phase::kMessages:
      if (std::exchange(wake_pending_, false)) take_messages();
      follow_router();
      phase_ = Phase::kPump;
      at_ = 0;
      return;
    case Phase::kPump:
      if (at_ < connections_.size()) return connections_[at_++].connection->pump(now());
      phase_ = Phase::kTick;
      at_ = 0;
  }
}

void SimWorker::end_of_ticks() {
  const bool sweeps = index_ == 0 || index_ == shared_.config.workers;
  if (sweeps && shared_.router.waiting() > 0) {
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
  for (const Authorized& message : std::exchange(authorized_, {})) {
    if (redis::Connection* connection = find(message.token)) {
      connection->on_credentials(message.dial, message.credentials, now());
    }
  }
  for (Resolved& message : std::exchange(resolved_, {})) {
    if (redis::Connection* connection = find(message.token)) {
      connection->on_resolved(message.dial, std::move(message.addresses), now());
    }
  }
  if (!std::exchange(release_pending_, false)) return;
  if (shared_.context.plant == Plant::kForgetCancel) return;
  shared_.router.sweep(now());
  for (Owned& owned : connections_) owned.connection->release(now());
}

void SimWorker::follow_router() {
  const std::uint64_t generation = shared_.router.generation();
  if (std::exchange(generation_, generation) == generation) return;
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
  wake();
}

void SimWorker::shut_down() {
  for (Owned& owned : connections_) owned.connection->shut_down(now());
}

redis::Connection* SimWorker::find(std::uint64_t token) noexcept {
  const auto found = std::ranges::find(connections_, token, &Owned::token);
  return found == connections_.end() ? nullptr : found->connection.get();
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
