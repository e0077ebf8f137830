#include "node/node_server.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <exception>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "net/poller.hpp"

namespace kvferry::node {
namespace {

constexpr Nanos kSweepEvery = 100 * kMilli;
constexpr std::size_t kThreadsMax = 256;
constexpr std::size_t kDroppedAtOnce = 64;

// 40 hexadecimal digits, as servers have them.
std::string random_run_id() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device device;
  std::string out(40, '0');
  for (char& digit : out) digit = kDigits[device() % kDigits.size()];
  return out;
}

// A node that lends is part of a program, which needs descriptors too.
std::size_t connections_max(const NodeOptions& options) {
  rlimit files{};
  if (!options.lends || ::getrlimit(RLIMIT_NOFILE, &files) != 0) return options.connections_max;
  return std::min<std::size_t>(options.connections_max, std::max<rlim_t>(files.rlim_cur / 2, 1));
}

}  // namespace

Result<std::unique_ptr<NodeServer>> NodeServer::open(NodeOptions options) {
  if (options.listen.empty() || options.threads < 1 || options.threads > kThreadsMax) {
    return Error{Errc::kInvalidArgument, "a node needs an address and 1 to 256 threads"};
  }
  auto access = Access::create(options.users);
  if (!access) return access.error();
  auto event = EventFd::open();
  if (!event) return event.error();
  std::unique_ptr<NodeServer> node(
      new NodeServer(std::move(options), std::move(*access), std::move(*event)));
  const Outcome started = node->start();
  if (!started) return started.error();
  return node;
}

NodeServer::NodeServer(NodeOptions options, Access access, EventFd event)
    : options_(std::move(options)),
      access_(std::move(access)),
      clients_(connections_max(options_), options_.limits.announced_bytes_max,
               options_.limits.held_bytes_max),
      event_(std::move(event)) {}

Outcome NodeServer::start() {
  // The addresses first: a second node on them must not take the first one's state.
  for (net::Endpoint endpoint : options_.listen) {
    const std::size_t star = endpoint.unix_path.rfind('*');
    if (options_.lends && star != std::string::npos && !listeners_.empty()) {
      const std::uint16_t port = listeners_.front().endpoint().port;
      endpoint.unix_path.replace(star, 1, std::to_string(port));
    }
    auto listener = net::Listener::open(endpoint);
    if (!listener) return listener.error();
    listeners_.push_back(std::move(*listener));
  }
  if (options_.tls.enabled) {
    auto tls = net::TlsContext::open(
        options_.tls,
        [this](LogLevel level, const std::string&) {
          if (level == LogLevel::kWarning) Counters::add(counters_.tls_files_refused);
        },
        net::TlsRole::kServer);
    if (!tls) return tls.error();
    tls_ = std::move(*tls);
  }
  if (options_.lends) {
    auto lent = std::make_unique<LentValues>(&clients_);
    lent_ = lent.get();
    values_ = std::move(lent);
  } else {
    auto store = ValueStore::create(options_.store, &clients_);
    if (!store) return store.error();
    store_ = store->get();
    values_ = std::move(*store);
  }
  const std::size_t half = options_.store.size_bytes / 2;
  in_flight_ = std::make_unique<InFlight>(
      options_.in_flight_bytes_max > 0 ? options_.in_flight_bytes_max : half);
  context_.reset(new Context{*values_, access_, clients_, *in_flight_, counters_, agent_,
                             options_.limits,
                             NodeFacts{.version = options_.version,
                                       .policy = options_.store.policy,
                                       .run_id = random_run_id(),
                                       .bind = {},
                                       .unix_path = {},
                                       .port = 0,
                                       .threads = static_cast<int>(options_.threads),
                                       .since = unix_ms()}});
  for (const net::Listener& listener : listeners_) {
    NodeFacts& facts = context_->facts;
    if (facts.port == 0) facts.port = listener.endpoint().port;
    if (facts.unix_path.empty()) facts.unix_path = listener.endpoint().unix_path;
    if (!listener.endpoint().is_unix()) {
      facts.bind += (facts.bind.empty() ? "" : " ") + listener.endpoint().host;
    }
  }
  for (std::size_t i = 0; i < options_.threads; ++i) {
    auto worker = NodeWorker::open(*context_, options_.pace);
    if (!worker) return worker.error();
    workers_.push_back(std::move(*worker));
  }
  if (store_ != nullptr && !options_.state_file.empty()) {
    auto loaded = load_state(*store_, options_.state_file, unix_ms());
    if (!loaded) return loaded.error();
    loaded_ = *loaded;
  }
  try {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      NodeWorker* worker = workers_[i].get();
      threads_.emplace_back("kvferry-node-" + std::to_string(i), [worker] { worker->run(); });
    }
    threads_.emplace_back("kvferry-node", [this] { run(); });
  } catch (const std::system_error& error) {
    return system_error("start a thread", error.code().value());
  }
  return Done{};
}

NodeServer::~NodeServer() { (void)stop(); }

Outcome NodeServer::stop() {
  if (stopping_.exchange(true, std::memory_order_relaxed)) return Done{};
  event_.signal();
  for (const auto& worker : workers_) worker->stop();
  const bool served = threads_.size() > workers_.size();
  for (Thread& thread : threads_) thread.join();
  workers_.clear();
  // Kept while the addresses are still ours, so that who takes them next finds it complete.
  Outcome kept = Done{};
  if (served && store_ != nullptr && !options_.state_file.empty()) {
    const auto saved = save_state(*store_, options_.state_file, unix_ms());
    if (!saved) kept = saved.error();
  }
  // The port last: who takes it next finds the path of the Unix socket free.
  while (!listeners_.empty()) listeners_.pop_back();
  return kept;
}

std::vector<net::Endpoint> NodeServer::endpoints() const {
  std::vector<net::Endpoint> out;
  for (const net::Listener& listener : listeners_) out.push_back(listener.endpoint());
  return out;
}

void NodeServer::run() {
  auto poller = net::Poller::open();
  if (!poller) return;  // out of descriptors at the start: nobody can connect
  (void)poller->watch(event_.fd(), 0, true, false);
  bool watching = false;
  while (!stopping_.load(std::memory_order_relaxed)) {
    for (std::size_t i = 0; !watching && i < listeners_.size(); ++i) {
      (void)poller->watch(listeners_[i].fd(), i + 1, true, false);
    }
    watching = true;
    const auto ready = poller->wait(kSweepEvery);
    if (!ready.empty() && !accepted_all()) {
      // Out of descriptors, or of memory. Those who wait stay ready, so they are looked at again in
      // a while.
      clients_.drop_silent(kDroppedAtOnce);
      for (const net::Listener& listener : listeners_) poller->forget(listener.fd());
      (void)poller->wait(kSweepEvery);
      watching = false;
    }
    values_->sweep(unix_ms());
  }
}

bool NodeServer::accepted_all() {
  try {
    return accept_all();
  } catch (const std::exception&) {
    Counters::add(counters_.failed);
    return false;
  }
}

bool NodeServer::accept_all() {
  for (net::Listener& listener : listeners_) {
    for (;;) {
      auto accepted = listener.accept();
      if (!accepted) return false;
      if (!*accepted) break;
      std::unique_ptr<net::Stream> stream = std::move((*accepted)->stream);
      if (tls_ && !listener.endpoint().is_unix()) {
        auto secured = tls_->accept_over(std::move(stream));
        if (!secured) continue;  // no memory for it
        stream = std::move(*secured);
      }
      const auto worker = std::ranges::min_element(
          workers_, {}, [](const auto& one) { return one->connections(); });
      (*worker)->expect_one();
      (*worker)->mailbox().give({std::move(stream), std::move((*accepted)->peer)});
    }
  }
  return true;
}

}  // namespace kvferry::node
