#include "sim/client.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "sim/addresses.hpp"
#include "sim/tokens.hpp"

namespace kvferry::sim {
namespace {

// As in redis/cluster/topology_watch.cpp.
constexpr Nanos kGapMin = 20 * kMilli;
constexpr Nanos kTroubledMin = 100 * kMilli;
constexpr Nanos kTroubledMax = 1 * kSecond;
constexpr Nanos kSentinelPoll = 250 * kMilli;
constexpr Nanos kAskMax = 300 * kMilli;  // of a node that does not answer

}  // namespace

SimClient::SimClient(const StreamContext& context, Ledger& ledger, Cluster& cluster,
                     Network& network)
    : context_(context),
      ledger_(ledger),
      cluster_(cluster),
      network_(network),
      config_(config_of(context.plan)),
      router_(config_, log_, *this) {
  const SimWorker::Surroundings shared{
      .context = context_,
      .config = config_,
      .router = router_,
      .network = network_,
      .credentials = context_.plan.credentials ? &credentials_ : nullptr,
      .look_up =
          [this](SimWorker& worker, std::uint64_t token, std::uint64_t dial, std::uint16_t port) {
            const Nanos delay =
                context_.random.one_in(64) ? 3 * kSecond : context_.random.between(0, 200) * kMicro;
            if (delay > kSecond) context_.journal.trouble("a name takes long");
            look_ups_.push_back({context_.journal.now() + delay, &worker, token, dial, port});
          },
      .ask_provider =
          [this] {
            const Nanos due = context_.journal.now() + context_.random.between(0, 500) * kMicro;
            provide_at_ = std::min(provide_at_, due);
          }};
  for (std::size_t index = 0; index <= config_.workers; ++index) {
    workers_.push_back(std::make_unique<SimWorker>(shared, index));
  }
}

SimClient::~SimClient() { credentials_.close(); }

// --- Calls of a caller ---

bool SimClient::submit(std::shared_ptr<redis::Batch> batch, std::vector<Use> uses) {
  batch->id = next_id_++;
  context_.journal.note("submit", static_cast<std::int64_t>(batch->id),
                        static_cast<std::int64_t>(batch->options().verb));
  ledger_.open(batch, std::move(uses));
  if (!router_.submit(batch)) {
    ledger_.refused();
    return false;
  }
  return true;
}

void SimClient::cancel(Request& request) {
  context_.journal.note("cancel", static_cast<std::int64_t>(request.batch->id));
  ledger_.cancelled(request);
  request.batch->cancel();
  for (auto& worker : workers_) worker->release_withdrawn();
}

void SimClient::close() {
  context_.journal.note("close");
  closed_ = true;
  ledger_.closing();
  for (Request& request : ledger_.requests()) {
    if (!request.done) request.batch->cancel();
  }
  for (auto& worker : workers_) worker->shut_down();
  look_ups_.clear();
  credentials_.close();
  router_.refuse_all(Status::kCancelled, "the client was closed");
}

// --- What servers and connections say ---

void SimClient::finished(redis::Batch& batch) {
  batch.finish();
  ledger_.finished(batch);
}

void SimClient::corrupt(redis::Batch& batch, const redis::Command& command) {
  if (closed_) return;
  auto removal = std::make_shared<redis::Batch>(redis::Batch::Options{
      .verb = Verb::kDelete, .deadline = context_.journal.now() + config_.timeout});
  removal->add(batch.key(command), {});
  const std::optional<std::size_t> entry = entry_of(batch.key(command));
  // A removal of a second stripe would need a use of its own; those few are not made.
  if (!entry || *entry % 2 == 1) return;
  submit(std::move(removal), {{static_cast<std::uint8_t>(*entry / 2), 0, {}}});
}

void SimClient::wake_workers() {
  for (auto& worker : workers_) worker->wake();
}

void SimClient::wake(std::size_t worker, const redis::AskedNode& server) {
  workers_[worker]->wake(static_cast<const redis::Server&>(server));
}

void SimClient::redirected(redis::AskedNode& from, redis::Work work, std::string_view answer) {
  const Nanos now = context_.journal.now();
  context_.journal.note(answer.starts_with("TRYAGAIN") ? "told to try again" : "redirected",
                        static_cast<std::int64_t>(work.batch->id), work.command->redirects);
  if (context_.plant == Plant::kStaleNode && answer.starts_with("MOVED")) {
    for (const redis::Router::Node& node : router_.nodes()) {
      if (node.server.get() == &from) node.server->put_back(work);
    }
    return wake_workers();
  }
  router_.redirected(from, work, answer, now);
  if (context_.plant == Plant::kAskWithoutAsking) work.command->asking = false;
  if (context_.plant == Plant::kSettleTwice) from.settle(work, Status::kUnavailable, "planted");
}

void SimClient::suspect() { signalled_ = true; }

// --- The threads ---

bool SimClient::step() {
  if (closed_) return false;
  if (context_.plant != Plant::kNone) plant();
  const std::size_t count = workers_.size();
  const std::size_t start = context_.random.below(count + 1);
  for (std::size_t offset = 0; offset <= count; ++offset) {
    const std::size_t index = (start + offset) % (count + 1);
    if (index == count) {
      if (step_names() || step_provider() || step_control()) return true;
    } else if (workers_[index]->runnable()) {
      workers_[index]->step();
      return true;
    }
  }
  return false;
}

Nanos SimClient::next() const noexcept {
  if (closed_) return kNever;
  Nanos earliest = provide_at_;
  for (const auto& worker : workers_) earliest = std::min(earliest, worker->next());
  for (const LookUp& look_up : look_ups_) earliest = std::min(earliest, look_up.due);
  if (config_.topology == redis::Topology::kStandalone) return earliest;
  if (asking_) return std::min(earliest, answer_at_);
  return signalled_ ? 0 : std::min({earliest, look_at_, parked_at_});
}

bool SimClient::step_names() {
  const Nanos now = context_.journal.now();
  const auto due =
      std::ranges::find_if(look_ups_, [&](const LookUp& each) { return each.due <= now; });
  if (due == look_ups_.end()) return false;
  const LookUp look_up = *due;
  look_ups_.erase(due);
  std::vector<net::Address> addresses{address_at(look_up.port)};
  if (context_.random.one_in(16)) addresses.insert(addresses.begin(), address_at(1));
  if (context_.plan.troubles > 0 && context_.random.one_in(64)) {
    context_.journal.trouble("no such name");
    look_up.worker->on_resolved(look_up.token, look_up.dial, Error{Errc::kResolve, "no such name"});
  } else {
    look_up.worker->on_resolved(look_up.token, look_up.dial, std::move(addresses));
  }
  return true;
}

bool SimClient::step_provider() {
  const Nanos now = context_.journal.now();
  if (!context_.plan.credentials || now < provide_at_) return false;
  provide_at_ = now + context_.random.between(1, 4000) * kMilli;
  context_.journal.note("credentials");
  if (context_.plan.troubles > 0 && context_.random.one_in(32)) {
    context_.journal.trouble("no credentials");
    credentials_.provide(Error{Errc::kAuth, "no credentials"});
  } else {
    credentials_.provide(redis::Credentials{"sim", make_token(now)});
  }
  wake_workers();
  return true;
}

bool SimClient::step_control() {
  if (config_.topology == redis::Topology::kStandalone) return false;
  const Nanos now = context_.journal.now();
  if (asking_) {
    if (now < answer_at_) return false;
    asking_ = false;
    look();
    parked_at_ = router_.release_parked(context_.journal.now());
    return true;
  }
  const bool woken = std::exchange(signalled_, false);
  suspected_ = suspected_ || woken;
  if (suspected_) look_at_ = std::min(look_at_, looked_at_ + kGapMin);
  if (!woken && now < look_at_ && now < parked_at_) return false;
  if (now >= look_at_) {
    suspected_ = false;
    asking_ = true;
    context_.journal.note("asks for a map");
    const bool slow = context_.journal.troubled() && context_.random.one_in(8);
    answer_at_ = now + (slow ? kAskMax : context_.random.between(0, 1000) * kMicro);
    return true;
  }
  parked_at_ = router_.release_parked(now);
  return true;
}

void SimClient::look() {
  const Nanos now = context_.journal.now();
  bool troubled = false;
  for (const redis::Router::Node& node : router_.nodes()) {
    const bool primary = node.server->role() == redis::NodeRole::kPrimary;
    troubled = troubled || (primary && !node.server->available());
  }
  auto map = cluster_.map();
  const bool fails = context_.journal.troubled() && context_.random.one_in(16);
  looked_at_ = now;
  troubled_for_ = std::clamp(2 * troubled_for_, kTroubledMin, kTroubledMax);
  look_at_ = now + troubled_for_;
  Outcome outcome = map ? Outcome(Done{}) : Outcome(map.error());
  if (fails) outcome = Error{Errc::kTimeout, "no answer"};
  const bool stale = context_.plant == Plant::kStaleMap && router_.generation() > 0;
  if (outcome && !stale) outcome = router_.apply(*map, now);
  context_.journal.note(outcome ? "map" : "no map");
  if (!outcome) return router_.no_topology(outcome.error());
  if (troubled) return;
  troubled_for_ = 0;
  look_at_ = now + (config_.topology == redis::Topology::kSentinel ? kSentinelPoll
                                                                   : config_.topology_refresh);
}

// --- Checks and plants ---

void SimClient::plant() {
  const auto& servers = workers_[0]->servers();
  if (servers.empty() || !context_.random.one_in(64)) return;
  redis::Server& server = *servers[0];
  if (context_.plant == Plant::kForgetCommand) {
    [[maybe_unused]] const redis::Work lost = server.queue().pull(redis::Lane::kRead);
  } else if (context_.plant == Plant::kLeakStream) {
    [[maybe_unused]] const bool entered =
        server.gate().try_enter(redis::Direction::kRead, context_.journal.now());
  }
}

std::uint64_t SimClient::settled() const {
  std::set<redis::Server*> all;
  for (const auto& worker : workers_) {
    for (const auto& server : worker->servers()) all.insert(server.get());
  }
  std::uint64_t count = 0;
  for (redis::Server* server : all) count += server->stats().commands_settled.load();
  return count;
}

void SimClient::check_closed() {
  Journal& journal = context_.journal;
  // What settles before there is a map is counted where nobody can see it, so equality is asked
  // only where there always is one.
  ledger_.check_end(settled(), config_.topology == redis::Topology::kStandalone);
  if (const std::size_t waiting = router_.waiting(); waiting > 0) {
    journal.fail(std::to_string(waiting) + " commands still wait");
  }
  for (const auto& worker : workers_) {
    for (const auto& server : worker->servers()) {
      for (const auto direction : {redis::Direction::kRead, redis::Direction::kWrite}) {
        // Closed connections have left, so as many as are permitted may enter.
        std::size_t entered = 0;
        const std::size_t limit = server->gate().limit(direction);
        const Nanos later = journal.now() + kSecond;  // no small command is recent any more
        while (entered < limit && server->gate().try_enter(direction, later)) ++entered;
        if (entered < limit) journal.fail("a stream's place was not given back");
        for (; entered > 0; --entered) server->gate().leave(direction, later);
      }
      const redis::Stats& stats = server->stats();
      if (stats.connections_opened.load() != stats.connections_lost.load()) {
        journal.fail("connections that were opened and not lost, or the other way round");
      }
    }
  }
  for (std::size_t index = 0; index < network_.size(); ++index) {
    if (network_.wire(index).client_holds && !closed_) journal.fail("a socket is left open");
  }
}

}  // namespace kvferry::sim
