#include "connector/redis.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include "codec/little_endian.hpp"
#include "codec/stripe.hpp"

namespace kvferry::connector {
// What a batch knows of its job. Keeps both alive until the batch is finished.
class RedisConnector::Exchange final : public redis::BatchListener {
 public:
  Exchange(std::shared_ptr<RedisConnector> owner, std::shared_ptr<Job> job)
      : owner_(std::move(owner)), job_(std::move(job)) {}

  void corrupt(const redis::Batch&, const redis::Command& command) override {
    {
      const std::lock_guard lock(mutex_);
      if (!corrupt_.insert(command.item).second) return;  // another stripe of it was
    }
    owner_->refused(command.fault, job_->key(command.item));
  }
  void finished(redis::Client& client, const std::shared_ptr<redis::Batch>& batch) override {
    batch->listener = nullptr;  // the caller holds this
    owner_->ended(client, *job_, *batch);
  }

 private:
  const std::shared_ptr<RedisConnector> owner_;
  const std::shared_ptr<Job> job_;
  std::mutex mutex_;
  std::set<std::uint32_t> corrupt_;  // values that are counted already
};

Result<std::shared_ptr<Connector>> RedisConnector::open(
    Space space, const std::shared_ptr<redis::Client>& client) {
  auto event = EventFd::open();
  if (!event) return event.error();
  return std::shared_ptr<Connector>(
      std::make_shared<RedisConnector>(std::move(space), std::move(*event), client));
}

RedisConnector::RedisConnector(Space space, EventFd event, std::weak_ptr<redis::Client> client)
    : Connector(std::move(space), std::move(event)),
      identity_(codec::load_le<std::uint64_t>(Connector::space().identity.data())),
      client_(std::move(client)) {}

Nanos RedisConnector::deadline_for(std::size_t payload_bytes) const noexcept {
  const auto client = client_.lock();
  return client ? client->deadline_for(payload_bytes) : Connector::deadline_for(payload_bytes);
}

bool RedisConnector::available() const {
  const auto client = client_.lock();
  return client && client->router().available();
}

Outcome RedisConnector::start(const std::shared_ptr<Job>& job) {
  const auto client = client_.lock();
  if (!client) return Error{Errc::kClosed, "the client is closed"};
  const Job::Options& options = job->options();
  const auto batch = std::make_shared<redis::Batch>(
      redis::Batch::Options{.verb = static_cast<redis::Verb>(options.verb),
                            .deadline = options.deadline,
                            .ttl_ms = options.ttl_ms,
                            .prefix = options.prefix,
                            .framed = true,
                            .identity = identity_});
  const std::size_t size = space().value_size_bytes;
  batch->reserve(job->size(), job->size() * (space().prefix.size() + job->key(0).size() + 8));
  for (std::size_t index = 0; index < job->size(); ++index) {
    const MutableBytes buffer = job->buffer(index);
    const MutableBytes memory =
        buffer.data() != nullptr ? buffer : MutableBytes(static_cast<std::byte*>(nullptr), size);
    batch->add(full_key(space(), job->key(index)), memory);
  }
  batch->quiet = true;
  batch->listener =
      std::make_shared<Exchange>(std::static_pointer_cast<RedisConnector>(shared_from_this()), job);
  {
    const std::lock_guard lock(mutex_);
    batches_.emplace(job->id, Running{batch, 0});
  }
  const auto submitted = client->submit(batch);
  {
    const std::lock_guard lock(mutex_);
    if (!submitted) {
      batches_.erase(job->id);
    } else if (const auto found = batches_.find(job->id); found != batches_.end()) {
      found->second.id = *submitted;
    }
  }
  if (!submitted) {
    batch->listener = nullptr;
    none_left_.notify_all();
    return submitted.error();
  }
  // A cancel() that came before the batch had its number did not reach the client.
  if (job->cancelled()) client->cancel(*submitted);
  return Done{};
}

void RedisConnector::withdraw(Job& job) {
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = batches_.find(job.id);
    if (found != batches_.end()) id = found->second.id;
  }
  const auto client = client_.lock();
  if (id != 0 && client) client->cancel(id);
}

std::size_t RedisConnector::progress(const Job& job) const {
  {
    const std::lock_guard lock(mutex_);
    const auto found = batches_.find(job.id);
    if (found != batches_.end()) return found->second.batch->progress();
  }
  return job.progress();
}

void RedisConnector::ended(redis::Client& client, Job& job, const redis::Batch& batch) {
  const std::size_t count = job.size();
  std::vector<std::uint8_t> statuses(count);
  std::vector<std::uint64_t> sizes(count);
  batch.results(statuses.data(), sizes.data());
  bool last = false;
  bool misfits = false;
  for (std::size_t index = 0; index < count; ++index) {
    const auto status = static_cast<Status>(statuses[index]);
    misfits = misfits || status == Status::kSizeMismatch || status == Status::kCorrupt;
    if (status == Status::kSizeMismatch) refused(codec::FrameFault::kSize, job.key(index));
    last = job.settle(index, status, sizes[index], index == 0 ? batch.error() : "");
  }
  if (misfits) delete_misfits(client, job);
  if (last) {
    const std::uint64_t id = job.id;
    finished(job);
    const std::lock_guard lock(mutex_);
    batches_.erase(id);
  }
  none_left_.notify_all();
}

void RedisConnector::delete_misfits(redis::Client& client, const Job& job) {
  auto removal = std::make_shared<redis::Batch>(redis::Batch::Options{
      .verb = redis::Verb::kDelete, .deadline = client.deadline_for(0), .framed = true});
  for (std::size_t index = 0; index < job.size(); ++index) {
    const Status status = job.status(index);
    if (status != Status::kSizeMismatch && status != Status::kCorrupt) continue;
    // As many stripes as a value of that length has. (The client deletes only those that it met.)
    const std::size_t size =
        status == Status::kCorrupt
            ? space().value_size_bytes
            : std::min<std::size_t>(job.value_size(index), codec::kValueSizeBytesMax);
    removal->add(full_key(space(), job.key(index)), {static_cast<std::byte*>(nullptr), size});
  }
  removal->quiet = true;
  // Best effort: without it the value stays and is found of no use again.
  [[maybe_unused]] const auto submitted = client.submit(removal);
}

void RedisConnector::stop(Nanos until) {
  const std::chrono::steady_clock::time_point moment{std::chrono::nanoseconds(until)};
  std::unique_lock lock(mutex_);
  none_left_.wait_until(lock, moment, [this] { return batches_.empty(); });
}

}  // namespace kvferry::connector
