#include "redis/client.hpp"

#include <unistd.h>

#include <system_error>
#include <utility>

namespace kvferry::redis {

Result<std::unique_ptr<Client>> Client::open(Config config) {
  if (config.connections == 0 || config.workers == 0) {
    return Error{Errc::kInvalidArgument, "connections and workers must be at least 1"};
  }
  config.workers = std::min(config.workers, config.connections);
  auto event = EventFd::open();
  if (!event) return event.error();
  std::unique_ptr<Client> client(new Client(std::move(config), std::move(*event)));
  for (std::size_t index = 0; index <= client->config_.workers; ++index) {
    auto worker = Worker::open(*client->server_, *client->resolver_, index);
    if (!worker) return worker.error();
    client->workers_.push_back(std::move(*worker));
  }
  try {
    for (auto& worker : client->workers_) worker->start();
  } catch (const std::system_error& problem) {
    return Error{Errc::kSystem, std::string("cannot start an I/O thread: ") + problem.what()};
  }
  return client;
}

Client::Client(Config config, EventFd event)
    : config_(std::move(config)),
      owner_pid_(::getpid()),
      completions_(std::move(event)),
      resolver_(std::make_unique<net::Resolver>()) {
  server_ = std::make_unique<Server>(
      config_, log_,
      Server::Hooks{.finished = [this](Batch& batch) { on_finished(batch); },
                    .corrupt = [this](Batch& batch, const Command& c) { on_corrupt(batch, c); },
                    .wake_workers =
                        [this] {
                          for (auto& worker : workers_) worker->wake();
                        }});
}

Client::~Client() { close(); }

Result<std::uint64_t> Client::submit(const std::shared_ptr<Batch>& batch) {
  if (forked()) {
    return Error{Errc::kForked, "this client belongs to the process that forked"};
  }
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Error{Errc::kClosed, "the client is closed"};
    id = batch->id = next_id_++;
    running_.emplace(id, batch);
  }
  if (!server_->queue().push(batch)) {
    const std::lock_guard lock(mutex_);
    running_.erase(id);
    return Error{Errc::kCapacity, "too many commands are waiting; try again later"};
  }
  // The checks come after the push, so that a breaker that opens or a close() in between misses
  // nothing.
  bool closed = false;
  {
    const std::lock_guard lock(mutex_);
    closed = closed_;
  }
  if (closed) {
    server_->refuse_all(Status::kCancelled, "the client was closed");
  } else if (server_->available()) {
    const bool small = lane_of(batch->options().verb) == Lane::kSmall;
    if (small && server_->small_lane_up()) {
      workers_.back()->wake();  // it owns the lane
    } else {
      server_->wake_workers();
    }
  } else {
    server_->refuse_all(Status::kUnavailable, server_->down_reason());
  }
  return id;
}

void Client::cancel(std::uint64_t id) {
  if (forked()) return;
  {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(id);
    if (found == running_.end()) return;
    found->second->cancel();
  }
  for (auto& worker : workers_) worker->release_withdrawn();
}

Nanos Client::deadline_for(std::size_t payload_bytes) const noexcept {
  const double transfer_s = static_cast<double>(payload_bytes) / config_.floor_rate_bytes_per_s;
  return add_time(monotonic_ns(), add_time(config_.timeout, from_seconds(transfer_s)));
}

void Client::close() {
  if (forked()) return;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    for (auto& [id, batch] : running_) batch->cancel();
  }
  for (auto& worker : workers_) worker->stop();
  resolver_.reset();  // workers ask it until they have stopped
  server_->refuse_all(Status::kCancelled, "the client was closed");
}

bool Client::forked() const noexcept { return ::getpid() != owner_pid_; }

std::size_t Client::running() const {
  const std::lock_guard lock(mutex_);
  return running_.size();
}

void Client::on_finished(Batch& batch) {
  std::shared_ptr<Batch> owner;
  {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(batch.id);
    owner = std::move(found->second);
    running_.erase(found);
  }
  owner->finish();
  if (!owner->quiet) completions_.push(std::move(owner));
}

void Client::on_corrupt(Batch& batch, const Command& command) {
  log_.push(LogLevel::kWarning, "a value was corrupt and is being deleted");
  auto removal =
      std::make_shared<Batch>(Batch::Options{.verb = Verb::kDelete, .deadline = deadline_for(0)});
  removal->reserve(1, command.key_length);
  removal->add(batch.key(command), {});
  removal->quiet = true;
  // Best effort: without it the value stays corrupt and is found so again.
  [[maybe_unused]] const auto submitted = submit(removal);
}

}  // namespace kvferry::redis
