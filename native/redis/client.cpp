#include "redis/client.hpp"

#include <unistd.h>

#include <system_error>
#include <utility>

#include "base/best_effort.hpp"
#include "base/check.hpp"
#include "redis/server_error.hpp"

namespace kvferry::redis {

Result<std::unique_ptr<Client>> Client::open(Config config,
                                             std::shared_ptr<net::Transport> transport,
                                             std::shared_ptr<CredentialSource> credentials) {
  if (config.connections == 0 || config.workers == 0) {
    return Error{Errc::kInvalidArgument, "connections and workers must be at least 1"};
  }
  for (const auto& [name, word] : {std::pair{"username", &config.username},
                                   {"password", &config.password},
                                   {"client_name", &config.client_name},
                                   {"sentinel_username", &config.sentinel_username},
                                   {"sentinel_password", &config.sentinel_password}}) {
    if (const Outcome fits = check_credential(name, *word); !fits) {
      return Error{Errc::kInvalidArgument, fits.error().context};
    }
  }
  // A cluster's nodes have connections of their own each, which all threads share.
  if (config.topology != Topology::kCluster) {
    config.workers = std::min(config.workers, config.connections);
  }
  auto event = EventFd::open();
  auto stop = EventFd::open();
  auto wake = EventFd::open();
  if (!event) return event.error();
  if (!stop) return stop.error();
  if (!wake) return wake.error();
  std::unique_ptr<Client> client(new Client(std::move(config), std::move(transport),
                                            std::move(credentials), std::move(*event),
                                            std::move(*stop), std::move(*wake)));
  if (const Outcome started = client->start(); !started) return started.error();
  return client;
}

Client::Client(Config config, std::shared_ptr<net::Transport> transport,
               std::shared_ptr<CredentialSource> credentials, EventFd event, EventFd stop,
               EventFd wake)
    : config_(std::move(config)),
      owner_pid_(::getpid()),
      transport_(std::move(transport)),
      credentials_(std::move(credentials)),
      completions_(std::move(event)),
      stop_(std::move(stop)),
      router_(config_, log_, *this),
      resolver_(std::make_unique<net::Resolver>()) {
  const LinkContext links{*transport_, *resolver_, credentials_.get(), stop_};
  std::unique_ptr<TopologySource> source;
  if (config_.topology == Topology::kCluster) source = cluster_source(config_, links);
  if (config_.topology == Topology::kSentinel) source = sentinel_source(config_, links);
  if (source != nullptr) {
    watch_ =
        std::make_unique<TopologyWatch>(config_, router_, log_, std::move(source), std::move(wake));
  }
}

Outcome Client::start() {
  if (asks_for_socket(config_)) {
    const LinkContext links{*transport_, *resolver_, credentials_.get(), stop_};
    auto same_host = SameHost::open(config_, router_.nodes().front().server, links, log_);
    if (!same_host) return same_host.error();
    same_host_ = std::move(*same_host);
  }
  const bool insists = config_.same_host == SameHostWay::kUnix;
  const Worker::Surroundings shared{config_,     router_,
                                    *resolver_,  insists ? same_host_.get() : nullptr,
                                    *transport_, credentials_.get(),
                                    log_};
  for (std::size_t index = 0; index <= config_.workers; ++index) {
    auto worker = Worker::open(shared, index);
    if (!worker) return worker.error();
    workers_.push_back(std::move(*worker));
  }
  try {
    for (auto& worker : workers_) worker->start();
    if (watch_) watch_->start();
    if (same_host_) same_host_->start();
  } catch (const std::system_error& problem) {
    return Error{Errc::kSystem, std::string("cannot start an I/O thread: ") + problem.what()};
  }
  if (config_.presence_prefix &&
      !watch({.prefix = *config_.presence_prefix, .keys_max = config_.presence_keys_max})) {
    return Error{Errc::kSystem, "cannot start the thread of the presence view"};
  }
  return Done{};
}

const PresenceView* Client::watch(PresenceOptions options) {
  if (forked()) return nullptr;
  const std::lock_guard lock(mutex_);
  const std::size_t count = views_count_.load(std::memory_order_relaxed);
  for (std::size_t index = 0; index < count; ++index) {
    if (views_[index]->prefix() == options.prefix) return views_[index].get();
  }
  if (closed_ || count == kViewsMax) return nullptr;
  const LinkContext links{*transport_, *resolver_, credentials_.get(), stop_};
  auto view = PresenceView::open(std::move(options), config_, router_, links, log_);
  if (!view) return nullptr;
  try {
    (*view)->start();
  } catch (const std::system_error&) {
    return nullptr;
  }
  views_[count] = std::move(*view);
  views_count_.store(count + 1, std::memory_order_release);
  return views_[count].get();
}

void Client::forked_away() noexcept {
  for (const auto& view : views_) {
    if (view) view->forked();
  }
}

Client::~Client() { close(); }

Result<std::uint64_t> Client::submit(const std::shared_ptr<Batch>& batch) {
  if (forked()) {
    return Error{Errc::kForked, "this client belongs to the process that forked"};
  }
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
  stop_.signal();
  if (watch_) watch_->stop();
  if (same_host_) same_host_->stop();
  for (const auto& view : views_) {
    if (view) view->stop();  // nobody watches any more
  }
  for (auto& worker : workers_) worker->stop();
  // Workers and links ask these until they have stopped.
  resolver_.reset();
  if (credentials_) credentials_->close();
  router_.refuse_all(Status::kCancelled, "the client was closed");
}

bool Client::forked() const noexcept { return ::getpid() != owner_pid_; }

std::size_t Client::running() const {
  const std::lock_guard lock(mutex_);
  return running_.size();
}

std::uint64_t Client::wake_ups() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& worker : workers_) sum += worker->wake_ups();
  return sum;
}

std::uint64_t Client::visits() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& worker : workers_) sum += worker->visits();
  return sum;
}

void Client::finished(Batch& batch) {
  std::shared_ptr<Batch> owner;
  {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(batch.id);
    check(found != running_.end(), "a batch finishes once");
    owner = std::move(found->second);
    running_.erase(found);
  }
  const std::size_t views = views_count_.load(std::memory_order_acquire);
  for (std::size_t index = 0; index < views; ++index) {
    // Before anybody hears of it; what a view does not hear of is a miss.
    best_effort([&] { views_[index]->wrote(batch); });
  }
  const std::shared_ptr<BatchListener> listener = owner->listener;
  owner->finish();
  if (listener) return listener->finished(*this, owner);
  if (!owner->quiet) completions_.push(std::move(owner));
}

void Client::corrupt(Batch& batch, const Command& command) try {
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

void Client::wake_workers() {
  for (auto& worker : workers_) worker->wake();
}

void Client::wake(std::size_t worker, const AskedNode& server) {
  workers_[worker]->wake(static_cast<const Server&>(server));
}

void Client::redirected(AskedNode& from, Work work, std::string_view answer) {
  router_.redirected(from, work, answer, monotonic_ns());
}

void Client::suspect() {
  if (watch_) watch_->suspect();
  if (same_host_) same_host_->suspect();
}

}  // namespace kvferry::redis
