#include "redis/client_core.hpp"

#include <new>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "redis/server_error.hpp"

namespace kvferry::redis {

ClientCore::ClientCore(Config config, EventFd event)
    : config_(std::move(config)), completions_(std::move(event)), router_(config_, log_, *this) {}

Result<std::uint64_t> ClientCore::submit(const std::shared_ptr<Batch>& batch) {
  if (std::string refusal = batch->refusal(); !refusal.empty()) {
    return Error{Errc::kInvalidArgument, std::move(refusal)};
  }
  std::uint64_t id = 0;
  const bool drained = !batch->quiet && batch->listener == nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Error{Errc::kClosed, "the client is closed"};
    id = batch->id = next_id_++;
    running_.emplace(id, batch);
    if (drained) completions_.reserve();
  }
  if (const Outcome taken = router_.submit(batch); !taken) {
    const std::lock_guard lock(mutex_);
    running_.erase(id);
    if (drained) completions_.unreserve();
    return taken.error();
  }
  // Looked at after the hand-over, so that a close() in between misses nothing.
  bool closed = false;
  {
    const std::lock_guard lock(mutex_);
    closed = closed_;
  }
  if (closed) router_.refuse_all(Status::kCancelled, "the client was closed");
  return id;
}

void ClientCore::cancel(std::uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(id);
    if (found == running_.end()) return;
    found->second->cancel();
  }
  for (Worker* worker : workers_) worker->release_withdrawn();
}

Nanos ClientCore::deadline_for(std::size_t payload_bytes) const noexcept {
  const double transfer_s = static_cast<double>(payload_bytes) / config_.floor_rate_bytes_per_s;
  return add_time(now(), add_time(config_.timeout, from_seconds(transfer_s)));
}

void ClientCore::begin_close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (auto& [id, batch] : running_) batch->cancel();
}

void ClientCore::end_close() { router_.refuse_all(Status::kCancelled, "the client was closed"); }

std::size_t ClientCore::running() const {
  const std::lock_guard lock(mutex_);
  return running_.size();
}

std::uint64_t ClientCore::visits() const noexcept {
  std::uint64_t sum = 0;
  for (const Worker* worker : workers_) sum += worker->visits();
  return sum;
}

void ClientCore::finished(Batch& batch) {
  std::shared_ptr<Batch> owner;
  {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(batch.id);
    check(found != running_.end(), "a batch finishes once");
    owner = std::move(found->second);
    running_.erase(found);
  }
  finishing(batch);
  const std::shared_ptr<BatchListener> listener = owner->listener;
  owner->finish();
  if (listener) return listener->finished(*this, owner);
  if (!owner->quiet) completions_.push(std::move(owner));
}

void ClientCore::corrupt(Batch& batch, const Command& command) try {
  const bool keeps = batch.options().keeps;
  log_.push(LogLevel::kWarning, "the value of " + printable(batch.key(command)) +
                                    " is not what was stored there (wrong " +
                                    std::string(codec::name(command.fault)) + "); it is a miss" +
                                    (keeps ? "" : " and is being deleted"));
  if (batch.listener) batch.listener->corrupt(batch, command);
  if (keeps) return;
  auto removal =
      std::make_shared<Batch>(Batch::Options{.verb = Verb::kDelete, .deadline = deadline_for(0)});
  removal->reserve(1, command.key_length);
  removal->add(batch.key(command), {});
  removal->quiet = true;
  // Best effort: without it the value stays corrupt and is found so again.
  [[maybe_unused]] const auto submitted = submit(removal);
} catch (const std::bad_alloc&) {  // the same
}

void ClientCore::wake_workers() {
  for (Worker* worker : workers_) worker->wake();
}

void ClientCore::wake(std::size_t worker, const AskedNode& server) {
  workers_[worker]->wake(static_cast<const Server&>(server));
}

void ClientCore::redirected(AskedNode& from, Work work, std::string_view answer) {
  router_.redirected(from, work, answer, now());
}

}  // namespace kvferry::redis
