#include "connector/redis.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include "codec/little_endian.hpp"
#include "codec/stripe.hpp"

namespace kvferry::connector {
// What a batch knows of its job. Keeps both alive until the batch is finished.
class RedisConnector::Exchange final : public redis::BatchListener, public mem::BufferSource {
 public:
  Exchange(std::shared_ptr<RedisConnector> owner, std::shared_ptr<Job> job, Asked asked)
      : owner_(std::move(owner)), job_(std::move(job)), asked_(std::move(asked)) {}

  void corrupt(const redis::Batch&, const redis::Command& command) override {
    {
      const std::lock_guard lock(mutex_);
      if (!corrupt_.insert(command.item).second) return;  // another stripe of it was
    }
    owner_->refused(command.fault, job_->key(asked_.index(command.item)));
  }
  void finished(redis::BatchTaker& client, const std::shared_ptr<redis::Batch>& batch) override {
    batch->listener = nullptr;  // the caller holds this
    owner_->ended(client, *job_, asked_, *batch);
  }

  std::byte* buffer(std::size_t item) noexcept override {
    return job_->source->buffer(asked_.index(item));
  }
  [[nodiscard]] bool wanted() const noexcept override { return job_->source->wanted(); }

 private:
  const std::shared_ptr<RedisConnector> owner_;
  const std::shared_ptr<Job> job_;
  const Asked asked_;
  std::mutex mutex_;
  std::set<std::uint32_t> corrupt_;  // values that are counted already
};

Result<std::shared_ptr<Connector>> RedisConnector::open(
    Space space, const std::shared_ptr<redis::Client>& client,
    std::optional<redis::PresenceOptions> presence, bool owns) {
  auto event = EventFd::open();
  if (!event) return event.error();
  const redis::PresenceView* view = nullptr;
  if (presence) {
    presence->prefix = space.prefix;
    view = client->watch(std::move(*presence));
  }
  return std::shared_ptr<Connector>(
      std::make_shared<RedisConnector>(std::move(space), std::move(*event), client, view, owns));
}

RedisConnector::RedisConnector(Space space, EventFd event, std::weak_ptr<redis::Client> client,
                               const redis::PresenceView* view, bool owns)
    : Connector(std::move(space), std::move(event)),
      identity_(codec::load_le<std::uint64_t>(Connector::space().identity.data())),
      client_(std::move(client)),
      view_(view),
      owns_(owns) {}

bool RedisConnector::available() const {
  const auto client = client_.lock();
  return client && client->router().available();
}

bool RedisConnector::absent(std::string_view key) const {
  const auto client = client_.lock();
  if (!client || view_ == nullptr) return false;
  const std::string name = full_key(space(), key);
  const std::string_view names[] = {name};
  redis::Presence known[] = {redis::Presence::kUnknown};
  view_->look_up(names, known);
  return known[0] == redis::Presence::kAbsent;
}

std::optional<std::size_t> RedisConnector::leading(std::span<const std::string_view> keys) const {
  const auto client = client_.lock();
  if (!client || view_ == nullptr) return std::nullopt;
  std::vector<std::string> full;
  full.reserve(keys.size());
  for (const std::string_view key : keys) full.push_back(full_key(space(), key));
  const std::vector<std::string_view> names(full.begin(), full.end());
  std::vector<redis::Presence> known(keys.size(), redis::Presence::kUnknown);
  view_->look_up(names, known);
  std::size_t count = 0;
  while (count < known.size() && known[count] == redis::Presence::kProbable) ++count;
  if (count < known.size() && known[count] == redis::Presence::kUnknown) return std::nullopt;
  return count;
}

std::optional<RedisConnector::View> RedisConnector::view() const {
  const auto client = client_.lock();
  if (!client || view_ == nullptr) return std::nullopt;
  return View{view_->stats(), view_->why()};
}

RedisConnector::Asked RedisConnector::choose(const Job& job,
                                             const std::vector<std::string>& names) const {
  const Job::Options& options = job.options();
  Asked asked{.indexes = {}, .leading = names.size(), .all = true};
  const bool answerable = options.verb == Verb::kGet || options.verb == Verb::kTouch ||
                          (options.verb == Verb::kExists && options.prefix);
  if (view_ == nullptr || !answerable) return asked;
  const std::vector<std::string_view> keys(names.begin(), names.end());
  std::vector<redis::Presence> known(keys.size(), redis::Presence::kUnknown);
  view_->look_up(keys, known);
  const auto first = std::ranges::find(known, redis::Presence::kAbsent);
  if (first == known.end()) return asked;
  asked.all = false;
  asked.leading = static_cast<std::size_t>(first - known.begin());
  const std::size_t end = options.prefix ? asked.leading : known.size();
  for (std::size_t index = 0; index < end; ++index) {
    if (known[index] != redis::Presence::kAbsent) {
      asked.indexes.push_back(static_cast<std::uint32_t>(index));
    }
  }
  return asked;
}

Outcome RedisConnector::start(const std::shared_ptr<Job>& job) {
  const auto client = client_.lock();
  if (!client) return Error{Errc::kClosed, "the client is closed"};
  std::vector<std::string> names(job->size());
  for (std::size_t index = 0; index < names.size(); ++index) {
    names[index] = full_key(space(), job->key(index));
  }
  Asked asked = choose(*job, names);
  if (asked.all) return ask(*client, job, names, std::move(asked));
  job->unasked = asked.indexes.empty();
  if (!job->unasked) {
    if (Outcome sent = ask(*client, job, names, asked); !sent) return sent;
  }
  settle_absent(*job, asked);
  return Done{};
}

// In the thread that submits. Whoever completes the last key of a job ends it.
void RedisConnector::settle_absent(Job& job, const Asked& asked) {
  bool last = false;
  auto next = asked.indexes.begin();
  for (std::size_t index = 0; index < job.size(); ++index) {
    if (next != asked.indexes.end() && *next == index) {
      ++next;
      continue;
    }
    const bool beyond = job.options().prefix && index > asked.leading;
    last = job.complete(index, beyond ? Status::kCancelled : Status::kMiss);
  }
  count_unasked(job.size() - asked.indexes.size());
  if (last) conclude(job);
}

Outcome RedisConnector::ask(redis::Client& client, const std::shared_ptr<Job>& job,
                            const std::vector<std::string>& names, Asked asked) {
  const Job::Options& options = job->options();
  const auto batch = std::make_shared<redis::Batch>(
      redis::Batch::Options{.verb = options.verb,
                            .deadline = options.deadline,
                            .ttl_ms = options.ttl_ms,
                            .prefix = options.prefix,
                            .framed = true,
                            .identity = identity_,
                            .codec = codec_.load(std::memory_order_relaxed),
                            .keeps = !owns_});
  const std::size_t size = space().value_size_bytes;
  const std::size_t count = asked.all ? names.size() : asked.indexes.size();
  const std::size_t leading = asked.leading;
  batch->reserve(count, count * (names[0].size() + 8));
  for (std::size_t item = 0; item < count; ++item) {
    const std::size_t index = asked.index(item);
    const MutableBytes buffer = job->buffer(index);
    const MutableBytes memory =
        buffer.data() != nullptr ? buffer : MutableBytes(static_cast<std::byte*>(nullptr), size);
    batch->add(names[index], memory);
  }
  batch->quiet = true;
  const auto exchange = std::make_shared<Exchange>(
      std::static_pointer_cast<RedisConnector>(shared_from_this()), job, std::move(asked));
  batch->listener = exchange;
  if (job->source != nullptr) batch->source = exchange;
  {
    const std::lock_guard lock(mutex_);
    batches_.emplace(job->id, Running{batch, 0, leading});
  }
  const auto submitted = client.submit(batch);
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
  if (job->cancelled()) client.cancel(*submitted);
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
    if (found != batches_.end()) {
      return std::min(found->second.batch->progress(), found->second.leading);
    }
  }
  return job.progress();
}

void RedisConnector::ended(redis::BatchTaker& client, Job& job, const Asked& asked,
                           const redis::Batch& batch) {
  const std::size_t count = asked.all ? job.size() : asked.indexes.size();
  std::vector<std::uint8_t> statuses(count);
  std::vector<std::uint64_t> sizes(count);
  batch.results(statuses.data(), sizes.data());
  bool last = false;
  bool misfits = false;
  for (std::size_t item = 0; item < count; ++item) {
    const std::size_t index = asked.index(item);
    const auto status = static_cast<Status>(statuses[item]);
    misfits = misfits || status == Status::kSizeMismatch || status == Status::kCorrupt;
    if (status == Status::kSizeMismatch) refused(codec::FrameFault::kSize, job.key(index));
    last = job.complete(index, status, sizes[item], item == 0 ? batch.error() : Reason{});
  }
  if (misfits && owns_) delete_misfits(client, job, asked);
  if (last) conclude(job);
}

// All keys of the job are complete, here and there.
void RedisConnector::conclude(Job& job) {
  const std::uint64_t id = job.id;
  finished(job);
  {
    const std::lock_guard lock(mutex_);
    batches_.erase(id);
  }
  none_left_.notify_all();
}

void RedisConnector::delete_misfits(redis::BatchTaker& client, const Job& job, const Asked& asked) {
  auto removal = std::make_shared<redis::Batch>(redis::Batch::Options{
      .verb = Verb::kDelete, .deadline = client.deadline_for(0), .framed = true});
  const std::size_t count = asked.all ? job.size() : asked.indexes.size();
  for (std::size_t item = 0; item < count; ++item) {  // the others may not are complete yet
    const std::size_t index = asked.index(item);
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
