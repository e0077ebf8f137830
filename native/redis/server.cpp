#include "redis/server.hpp"

#include <new>
#include <utility>

#include "base/best_effort.hpp"

namespace kvferry::redis {

Server::Server(const Config& config, net::Endpoint endpoint, NodeRole role, LogSink& log,
               Dispatcher& dispatcher)
    : config_(config),
      endpoint_(std::move(endpoint)),
      role_(role),
      log_(log),
      dispatcher_(dispatcher),
      queue_(config.queued_commands_max),
      gate_(config.connections) {}

void Server::wake_for(Lane lane, std::size_t commands) {
  if (lane == Lane::kSmall) {
    if (!small_lane_up()) return wake_workers();
    return dispatcher_.wake(config_.workers, *this);  // it owns those lanes
  }
  const Direction direction = lane == Lane::kWrite ? Direction::kWrite : Direction::kRead;
  const auto wake = [this](std::size_t worker) { dispatcher_.wake(worker, *this); };
  // Far away all share it; those that stream would look for it with their next answer.
  if (round_trip() >= kFarAway) return wake_workers();
  if (!gate_.claim(direction, commands, kNever, wake)) wake(0);
}

void Server::wake_for_streams(Nanos now) {
  const auto wake = [this](std::size_t worker) { dispatcher_.wake(worker, *this); };
  for (const Lane lane : {Lane::kRead, Lane::kWrite}) {
    const Direction direction = lane == Lane::kWrite ? Direction::kWrite : Direction::kRead;
    if (queue_.has_work(lane)) gate_.claim(direction, waiting(), now, wake);
  }
}

void Server::settle(Work work, Status status, Reason why) {
  const bool no_answer = status == Status::kMiss || status == Status::kUnavailable;
  if (role_ == NodeRole::kReplica && no_answer && !work.command->primary_only) {
    // It may lag behind its primary, which has the last word.
    work.command->primary_only = true;
    work.command->attempts = 0;
    return dispatcher_.route(work);
  }
  stats_.commands_settled.fetch_add(1, std::memory_order_relaxed);
  if (status == Status::kCorrupt || status == Status::kSizeMismatch) {
    const auto fault = static_cast<std::size_t>(work.command->fault);
    stats_.refused[fault].fetch_add(1, std::memory_order_relaxed);
  }
  if (status == Status::kCorrupt) {
    stats_.values_corrupt.fetch_add(1, std::memory_order_relaxed);
    dispatcher_.corrupt(*work.batch, *work.command);
  }
  Batch& batch = *work.batch;
  // A stripe of a SET keeps the batch alive, because stripe 0 waits for it; others may not.
  const bool stripe_zero_waits = batch.options().verb == Verb::kSet && work.command->stripe > 0;
  if (batch.settle(*work.command, status, why)) return dispatcher_.finished(batch);
  if (!stripe_zero_waits) return;
  Status others = Status::kOk;
  if (Command* first = batch.released_by(*work.command, others)) {
    first->deferred = false;
    if (others != Status::kOk) return settle({&batch, first}, others, {});
    dispatcher_.route({&batch, first});
  }
}

void Server::put_back(Work work) {
  try {
    queue_.put_back(work);
  } catch (const std::bad_alloc&) {
    return settle(work, Status::kUnavailable, {});
  }
  if (retired()) route_all();
}

void Server::redirected(Work work, std::string_view answer) {
  dispatcher_.redirected(*this, work, answer);
}

void Server::retire() {
  retired_.store(true, std::memory_order_release);
  route_all();
}

void Server::route_all() {
  for (const Work& work : queue_.remove(0, true)) dispatcher_.route(work);
}

void Server::sweep(Nanos now) {
  for (const Work& work : queue_.remove(now, false)) {
    settle(work, work.batch->cancelled() ? Status::kCancelled : Status::kTimeout, {});
  }
  wake_for_streams(now);  // the stream that has the only place may be a slow one
}

void Server::refuse_all(Status status, Reason why) {
  for (const Lane lane : {Lane::kSmall, Lane::kRead, Lane::kWrite}) {
    while (const Work work = queue_.pull(lane)) settle(work, status, why);
  }
}

void Server::on_up(bool data, const ServerInfo& info) {
  stats_.connections_opened.fetch_add(1, std::memory_order_relaxed);
  if (!info.zone.empty()) note_zone(info.zone);
  std::unique_lock lock(mutex_);
  info_ = info;
  if (data) {
    breaker_.on_up();
  } else {
    small_lane_up_.store(true, std::memory_order_relaxed);
  }
  publish(lock);
}

void Server::on_lost(bool data, bool silent, Reason why, Nanos now) {
  stats_.connections_lost.fetch_add(1, std::memory_order_relaxed);
  lose_shortcut();
  if (silent) suspected_at_.store(now, std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  if (data) {
    breaker_.on_lost(silent);
  } else {
    small_lane_up_.store(false, std::memory_order_relaxed);
  }
  down_error_ = {why.code.value_or(Errc::kDisconnect), std::string(why.text)};
  publish(lock);
  if (data) dispatcher_.suspect();
}

void Server::on_left(bool data) {
  std::unique_lock lock(mutex_);
  if (data) {
    breaker_.on_lost(false);
  } else {
    small_lane_up_.store(false, std::memory_order_relaxed);
  }
  publish(lock);
}

void Server::on_dial_failed(const Error& error) {
  stats_.dials_failed.fetch_add(1, std::memory_order_relaxed);
  const bool decisive =
      error.code == Errc::kTimeout || error.code == Errc::kAuth || error.code == Errc::kCertificate;
  std::unique_lock lock(mutex_);
  down_error_ = error;
  breaker_.on_dial_failed(decisive ? Breaker::Failure::kDecisive : Breaker::Failure::kRefused);
  publish(lock);
}

void Server::set_shortcut(const net::Address& address) {
  {
    const std::lock_guard lock(mutex_);
    // What was found good again is where those that stayed there are.
    if (shortcut_.version == 0 || !(shortcut_.address == address)) {
      shortcut_ = {.address = address, .version = shortcut_.version + 1};
    }
    shortcut_version_.store(shortcut_.version, std::memory_order_release);
  }
  wake_workers();  // connections that have nothing to do move now
}

void Server::lose_shortcut() {
  if (shortcut_version_.exchange(0, std::memory_order_acq_rel) != 0) dispatcher_.suspect();
}

Shortcut Server::shortcut() const {
  const std::lock_guard lock(mutex_);
  return shortcut_version() == 0 ? Shortcut{} : shortcut_;
}

void Server::renew(Nanos now) {
  renewed_at_.store(now, std::memory_order_release);
  lose_shortcut();
}

bool Server::begin_move() noexcept { return !moving_.exchange(true, std::memory_order_acq_rel); }

void Server::end_move() {
  moving_.store(false, std::memory_order_release);
  wake_workers();  // the next one
}

void Server::note_round_trip(Nanos took, bool at_most) noexcept {
  if (at_most && took >= round_trip()) return;
  // Beside values an answer says how long those take.
  if (unmeasured() && !gate_.in_use()) answers_.fetch_add(1, std::memory_order_relaxed);
  note_trip(took, gate_.server_backlog());
}

void Server::note_trip(Nanos took, Nanos served) noexcept {
  const std::lock_guard lock(trips_mutex_);
  trips_.note(took, served);
  const Nanos before = round_trip();
  if (trips_.shortest() == before) return;
  const bool moved_away = trips_.shortest() > before;
  if (moved_away) answers_.store(0, std::memory_order_relaxed);
  // Whoever sees the new distance finds the streams that it permits.
  gate_.set_far(trips_.shortest() >= kFarAway);
  round_trip_.store(trips_.shortest(), std::memory_order_release);
  wake_for_streams();
  if (moved_away) wake_for(Lane::kSmall, 1);  // it asks, once the server is idle
}

void Server::note_zone(std::string_view zone) noexcept {
  in_zone_.store(zone == config_.availability_zone, std::memory_order_relaxed);
}

void Server::fail_for_good(std::string_view why) {
  std::unique_lock lock(mutex_);
  failed_ = true;
  down_error_ = {Errc::kSystem, std::string(why)};
  publish(lock);
}

void Server::publish(std::unique_lock<std::mutex>& lock) {
  const bool now_available = !failed_ && !breaker_.open();
  const bool was_available = available_.exchange(now_available, std::memory_order_acq_rel);
  const Error why = down_error_;
  lock.unlock();
  if (!now_available) refuse_all(Status::kUnavailable, why);
  if (was_available && !now_available) {
    best_effort([&] {
      const std::string here = endpoint_.text();
      std::string_view reason = why.context;
      if (reason.starts_with(here + ": ")) reason.remove_prefix(here.size() + 2);
      log(LogLevel::kWarning, here + " is unavailable: " + std::string(reason));
    });
    dispatcher_.suspect();
  }
  if (!was_available && now_available) {
    best_effort([&] { log(LogLevel::kInfo, endpoint_.text() + " is available again"); });
    wake_workers();  // connections that had stopped dialling
  }
}

Error Server::down_error() const {
  const std::lock_guard lock(mutex_);
  return down_error_;
}

int Server::connections_up() const {
  const std::lock_guard lock(mutex_);
  return breaker_.up();
}

ServerInfo Server::info() const {
  const std::lock_guard lock(mutex_);
  return info_;
}

}  // namespace kvferry::redis
