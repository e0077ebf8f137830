#include "connector/connector.hpp"

#include <unistd.h>

namespace kvferry::connector {
namespace {

constexpr std::size_t kKeySizeBytesMax = 512;

std::string printable(std::string_view key) {
  std::string text;
  for (const char byte : key) text += byte >= 0x20 && byte < 0x7f ? byte : '?';
  return text;
}

}  // namespace

Connector::Connector(Space space, EventFd event)
    : space_(std::move(space)), owner_pid_(::getpid()), completions_(std::move(event)) {}

Result<std::uint64_t> Connector::submit(const std::shared_ptr<Job>& job) {
  if (forked()) return Error{Errc::kForked, "this connector belongs to the process that forked"};
  const Verb verb = job->options().verb;
  if (job->source != nullptr && (verb != Verb::kGet || !pages_on_demand())) {
    return Error{Errc::kInvalidArgument, "only GET has pages on demand, and not of every store"};
  }
  for (std::size_t index = 0; index < job->size(); ++index) {
    const std::size_t key_size = job->key(index).size();
    if (key_size == 0 || space_.prefix.size() + key_size > kKeySizeBytesMax) {
      return Error{Errc::kInvalidArgument,
                   "key " + std::to_string(index) + " has " + std::to_string(key_size) +
                       " bytes; use 1 to " + std::to_string(kKeySizeBytesMax) +
                       " with the prefix, which has " + std::to_string(space_.prefix.size())};
    }
    if (verb != Verb::kGet && verb != Verb::kSet) continue;
    const std::size_t size = job->buffer(index).size();
    if (size == space_.value_size_bytes) continue;
    return Error{Errc::kInvalidArgument,
                 "buffer " + std::to_string(index) + " has " + std::to_string(size) +
                     " bytes; every value here has " + std::to_string(space_.value_size_bytes)};
  }
  std::uint64_t id = 0;
  const bool drained = !job->quiet;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Error{Errc::kClosed, "the connector is closed"};
    id = job->id = next_id_++;
    running_.emplace(id, job);
    if (drained) completions_.reserve();
  }
  if (const Outcome taken = start(job); !taken) {
    const std::lock_guard lock(mutex_);
    running_.erase(id);
    if (drained) completions_.unreserve();
    return taken.error();
  }
  return id;
}

void Connector::cancel(std::uint64_t id) {
  if (forked()) return;
  std::shared_ptr<Job> job;
  {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(id);
    if (found == running_.end()) return;
    job = found->second;
  }
  job->cancel();
  withdraw(*job);
}

Result<Usage> Connector::usage() const {
  return Error{Errc::kInvalidArgument, "only the server knows what this store holds"};
}

Result<ScanPage> Connector::scan(std::uint64_t) {
  return Error{Errc::kInvalidArgument, "this driver cannot list its keys"};
}

Result<std::vector<std::pair<Identity, std::string>>> Connector::descriptions() {
  return Error{Errc::kInvalidArgument, "this driver keeps no descriptions"};
}

void Connector::close() {
  if (forked()) return;
  std::vector<std::shared_ptr<Job>> jobs;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    for (auto& [id, job] : running_) jobs.push_back(job);
  }
  for (const auto& job : jobs) {
    job->cancel();
    withdraw(*job);
  }
  stop(monotonic_ns() + kCloseWait);
}

bool Connector::forked() const noexcept { return ::getpid() != owner_pid_; }

std::size_t Connector::running() const {
  const std::lock_guard lock(mutex_);
  return running_.size();
}

void Connector::finished(Job& job) {
  const Verb verb = job.options().verb;
  std::uint64_t bytes = 0;
  for (std::size_t index = 0; index < job.size(); ++index) {
    const auto status = static_cast<std::size_t>(job.status(index));
    stats_.keys[status].fetch_add(1, std::memory_order_relaxed);
    if (job.status(index) == Status::kOk) bytes += job.buffer(index).size();
  }
  stats_.jobs.fetch_add(1, std::memory_order_relaxed);
  if (verb == Verb::kGet) stats_.bytes_read.fetch_add(bytes, std::memory_order_relaxed);
  if (verb == Verb::kSet) stats_.bytes_written.fetch_add(bytes, std::memory_order_relaxed);
  std::shared_ptr<Job> owner;
  {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(job.id);
    owner = std::move(found->second);
    running_.erase(found);
  }
  const bool quiet = owner->quiet;
  owner->finish();
  if (!quiet) completions_.push(std::move(owner));
}

void Connector::refused(codec::FrameFault fault, std::string_view key) {
  stats_.faults[static_cast<std::size_t>(fault)].fetch_add(1, std::memory_order_relaxed);
  log_.push(LogLevel::kWarning,
            "the value of " + printable(key) + " is not taken: " + std::string(codec::name(fault)));
}

std::string full_key(const Space& space, std::string_view key) {
  std::string full;
  full.reserve(space.prefix.size() + key.size());
  full += space.prefix;
  full += key;
  return full;
}

}  // namespace kvferry::connector
