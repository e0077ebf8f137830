#include "redis/client.hpp"

#include <unistd.h>

#include <system_error>
#include <utility>

#include "base/best_effort.hpp"

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

Client::Client(Config settings, std::shared_ptr<net::Transport> transport,
               std::shared_ptr<CredentialSource> credentials, EventFd event, EventFd stop,
               EventFd wake)
    : ClientCore(std::move(settings), std::move(event)),
      owner_pid_(::getpid()),
      transport_(std::move(transport)),
      credentials_(std::move(credentials)),
      stop_(std::move(stop)),
      resolver_(std::make_unique<net::Resolver>()) {
  const LinkContext links{*transport_, *resolver_, credentials_.get(), stop_};
  std::unique_ptr<TopologySource> source;
  if (config().topology == Topology::kCluster) source = cluster_source(config(), links);
  if (config().topology == Topology::kSentinel) source = sentinel_source(config(), links);
  if (source != nullptr) {
    watch_ = std::make_unique<TopologyWatch>(config(), router(), log(), std::move(source),
                                             std::move(wake));
  }
}

Outcome Client::start() {
  if (asks_for_socket(config())) {
    const LinkContext links{*transport_, *resolver_, credentials_.get(), stop_};
    auto same_host = SameHost::open(config(), router().nodes().front().server, links, log());
    if (!same_host) return same_host.error();
    same_host_ = std::move(*same_host);
  }
  const bool insists = config().same_host == SameHostWay::kUnix;
  const auto resolve = [this, insists](const net::Endpoint& endpoint,
                                       net::Resolver::Callback callback) {
    if (insists) return same_host_->request(std::move(callback));
    resolver_->request(endpoint, std::move(callback));
  };
  const Worker::Surroundings shared{.config = config(),
                                    .router = router(),
                                    .transport = *transport_,
                                    .resolve = resolve,
                                    .credentials = credentials_.get(),
                                    .log = log()};
  for (std::size_t index = 0; index <= config().workers; ++index) {
    auto thread = IoThread::open(shared, index);
    if (!thread) return thread.error();
    add((*thread)->worker());
    threads_.push_back(std::move(*thread));
  }
  try {
    for (auto& thread : threads_) thread->start();
    if (watch_) watch_->start();
    if (same_host_) same_host_->start();
  } catch (const std::system_error& problem) {
    return Error{Errc::kSystem, std::string("cannot start an I/O thread: ") + problem.what()};
  }
  if (config().presence_prefix &&
      !watch({.prefix = *config().presence_prefix, .keys_max = config().presence_keys_max})) {
    return Error{Errc::kSystem, "cannot start the thread of the presence view"};
  }
  return Done{};
}

const PresenceView* Client::watch(PresenceOptions options) {
  if (forked()) return nullptr;
  const std::lock_guard lock(views_mutex_);
  const std::size_t count = views_count_.load(std::memory_order_relaxed);
  for (std::size_t index = 0; index < count; ++index) {
    if (views_[index]->prefix() == options.prefix) return views_[index].get();
  }
  if (closed_ || count == kViewsMax) return nullptr;
  const LinkContext links{*transport_, *resolver_, credentials_.get(), stop_};
  auto view = PresenceView::open(std::move(options), config(), router(), links, log());
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
  return ClientCore::submit(batch);
}

void Client::cancel(std::uint64_t id) {
  if (!forked()) ClientCore::cancel(id);
}

void Client::close() {
  if (forked()) return;
  {
    const std::lock_guard lock(views_mutex_);
    if (std::exchange(closed_, true)) return;
  }
  begin_close();
  stop_.signal();
  if (watch_) watch_->stop();
  if (same_host_) same_host_->stop();
  for (const auto& view : views_) {
    if (view) view->stop();  // nobody watches any more
  }
  for (auto& thread : threads_) thread->stop();
  // Workers and links ask these until they have stopped.
  resolver_.reset();
  if (credentials_) credentials_->close();
  end_close();
}

bool Client::forked() const noexcept { return ::getpid() != owner_pid_; }

std::uint64_t Client::wake_ups() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& thread : threads_) sum += thread->wake_ups();
  return sum;
}

void Client::finishing(Batch& batch) {
  const std::size_t views = views_count_.load(std::memory_order_acquire);
  for (std::size_t index = 0; index < views; ++index) {
    // What a view does not hear of is a miss.
    best_effort([&] { views_[index]->wrote(batch); });
  }
}

void Client::suspect() {
  if (watch_) watch_->suspect();
  if (same_host_) same_host_->suspect();
}

}  // namespace kvferry::redis
