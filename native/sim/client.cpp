#include "sim/client.hpp"

#include <algorithm>
#include <utility>

#include "sim/addresses.hpp"
#include "sim/tokens.hpp"

namespace kvferry::sim {
namespace {

constexpr Nanos kAskMax = 300 * kMilli;  // of a node that does not answer

class Listener final : public redis::BatchListener {
 public:
  explicit Listener(Ledger& ledger) noexcept : ledger_(ledger) {}
  void corrupt(const redis::Batch&, const redis::Command&) override {}
  void finished(redis::BatchTaker&, const std::shared_ptr<redis::Batch>& batch) override {
    ledger_.finished(*batch);
  }

 private:
  Ledger& ledger_;
};

}  // namespace

SimClient::SimClient(const StreamContext& context, Ledger& ledger, Cluster& cluster,
                     Network& network, EventFd event)
    : ClientCore(config_of(context.plan), std::move(event)),
      context_(context),
      ledger_(ledger),
      cluster_(cluster),
      network_(network),
      listener_(std::make_shared<Listener>(ledger)) {
  const auto look_up = [this](const net::Endpoint& endpoint, net::Resolver::Callback callback) {
    const Nanos delay =
        context_.random.one_in(64) ? 3 * kSecond : context_.random.between(0, 200) * kMicro;
    if (delay > kSecond) context_.journal.trouble("a name takes long");
    look_ups_.push_back({now() + delay, endpoint.port, std::move(callback)});
  };
  const redis::Worker::Surroundings shared{
      .config = config(),
      .router = router(),
      .transport = network_,
      .resolve = look_up,
      .credentials = context_.plan.credentials ? &credentials_ : nullptr,
      .log = log()};
  for (std::size_t index = 0; index <= config().workers; ++index) {
    add(threads_.emplace_back(std::make_unique<SimThread>(context, network, shared, index))
            ->worker());
  }
  if (config().topology != redis::Topology::kStandalone) {
    refresh_.emplace(config(), router(), log());
  }
  note_servers();
}

SimClient::~SimClient() { credentials_.close(); }

// --- Calls of a caller ---

bool SimClient::submit(const std::shared_ptr<redis::Batch>& batch, std::vector<Use> uses) {
  context_.journal.note("submit", static_cast<std::int64_t>(batch->commands().size()),
                        static_cast<std::int64_t>(batch->options().verb));
  batch->listener = listener_;
  ledger_.open(batch, std::move(uses));
  const bool taken = static_cast<bool>(ClientCore::submit(batch));
  if (!taken) ledger_.refused();
  return taken;
}

// What the client itself asks for: the removal of a value that cannot be trusted.
Result<std::uint64_t> SimClient::submit(const std::shared_ptr<redis::Batch>& batch) {
  if (closed_) return Error{Errc::kClosed, "the client is closed"};
  const std::size_t entry = *entry_of(batch->key(batch->commands().front()));
  Use use{.key = static_cast<std::uint8_t>(entry / 2), .version = 0, .buffer = {}};
  use.stripe = static_cast<std::uint8_t>(entry % 2);
  if (!submit(batch, {use})) return Error{Errc::kCapacity, "there is too much"};
  return batch->id;
}

void SimClient::cancel(Request& request) {
  context_.journal.note("cancel", static_cast<std::int64_t>(request.batch->id));
  ledger_.cancelled(request);
  if (context_.plant == Plant::kForgetCancel) return request.batch->cancel();
  ClientCore::cancel(request.batch->id);
}

void SimClient::close() {
  context_.journal.note("close");
  closed_ = true;
  ledger_.closing();
  begin_close();
  for (auto& thread : threads_) thread->worker().shut_down(now());
  look_ups_.clear();
  credentials_.close();
  end_close();
}

// --- What servers and connections say ---

void SimClient::redirected(redis::AskedNode& from, redis::Work work, std::string_view answer) {
  context_.journal.note(answer.starts_with("TRYAGAIN") ? "told to try again" : "redirected",
                        static_cast<std::int64_t>(work.batch->id), work.command->redirects);
  if (context_.plant == Plant::kStaleNode && answer.starts_with("MOVED")) {
    for (const redis::Router::Node& node : router().nodes()) {
      if (node.server.get() == &from) node.server->put_back(work);
    }
    return wake_workers();
  }
  ClientCore::redirected(from, work, answer);
  if (context_.plant == Plant::kAskWithoutAsking) work.command->asking = false;
  if (context_.plant == Plant::kSettleTwice) from.settle(work, Status::kUnavailable, "planted");
}

// --- The threads ---

bool SimClient::step() {
  if (closed_) return false;
  if (context_.plant != Plant::kNone) plant();
  const std::size_t count = threads_.size();
  const std::size_t start = context_.random.below(count + 1);
  for (std::size_t offset = 0; offset <= count; ++offset) {
    const std::size_t index = (start + offset) % (count + 1);
    if (index == count) {
      if (!step_names() && !step_provider() && !step_map()) continue;
    } else if (threads_[index]->runnable()) {
      threads_[index]->step();
    } else {
      continue;
    }
    note_servers();
    return true;
  }
  return false;
}

Nanos SimClient::next() const noexcept {
  if (closed_) return kNever;
  Nanos earliest = provide_at_;
  for (const auto& thread : threads_) earliest = std::min(earliest, thread->next());
  for (const LookUp& look_up : look_ups_) earliest = std::min(earliest, look_up.due);
  if (!refresh_) return earliest;
  if (question_) return std::min(earliest, answer_at_);
  return signalled_ ? 0 : std::min(earliest, refresh_->next());
}

bool SimClient::step_names() {
  const auto due =
      std::ranges::find_if(look_ups_, [&](const LookUp& each) { return each.due <= now(); });
  if (due == look_ups_.end()) return false;
  const LookUp look_up = std::move(*due);
  look_ups_.erase(due);
  std::vector<net::Address> addresses{address_at(look_up.port)};
  if (context_.random.one_in(16)) addresses.insert(addresses.begin(), address_at(1));
  if (context_.plan.troubles > 0 && context_.random.one_in(64)) {
    context_.journal.trouble("no such name");
    look_up.callback(Error{Errc::kResolve, "no such name"});
  } else {
    look_up.callback(std::move(addresses));
  }
  return true;
}

bool SimClient::step_provider() {
  if (!context_.plan.credentials) return false;
  if (!asked_ && credentials_.await_request(0)) {
    asked_ = true;
    provide_at_ = std::min(provide_at_, now() + context_.random.between(0, 500) * kMicro);
  }
  if (now() < provide_at_) return false;
  asked_ = false;
  provide_at_ = now() + context_.random.between(1, 4000) * kMilli;
  context_.journal.note("credentials");
  if (context_.plan.troubles > 0 && context_.random.one_in(32)) {
    context_.journal.trouble("no credentials");
    credentials_.provide(Error{Errc::kAuth, "no credentials"});
  } else {
    credentials_.provide(redis::Credentials{"sim", make_token(now())});
  }
  wake_workers();
  return true;
}

bool SimClient::step_map() {
  if (!refresh_) return false;
  if (question_) {
    if (now() < answer_at_) return false;
    refresh_->answer(*question_, ask(), now());
    question_.reset();
    return true;
  }
  const bool woken = std::exchange(signalled_, false);
  if (!woken && now() < refresh_->next()) return false;
  question_ = refresh_->step(woken, now());
  if (question_) {
    context_.journal.note("asks for a map");
    const bool slow = context_.journal.troubled() && context_.random.one_in(8);
    answer_at_ = now() + (slow ? kAskMax : context_.random.between(0, 1000) * kMicro);
  }
  return true;
}

Result<redis::SlotMap> SimClient::ask() {
  if (context_.plant == Plant::kStaleMap && map_) return *map_;
  auto map = cluster_.map();
  if (context_.journal.troubled() && context_.random.one_in(16)) {
    map = Error{Errc::kTimeout, "no answer"};
  }
  context_.journal.note(map ? "map" : "no map");
  if (map && context_.plant == Plant::kStaleMap) map_ = *map;
  return map;
}

// --- Checks and plants ---

void SimClient::plant() {
  if (servers_.empty() || !context_.random.one_in(64)) return;
  redis::Server& server = *servers_[0];
  if (context_.plant == Plant::kForgetCommand) {
    [[maybe_unused]] const redis::Work lost = server.queue().pull(redis::Lane::kRead);
  } else if (context_.plant == Plant::kLeakStream) {
    [[maybe_unused]] const bool entered =
        server.gate().try_enter(redis::Direction::kRead, context_.journal.now());
  }
}

void SimClient::note_servers() {
  if (std::exchange(generation_, router().generation()) == router().generation()) return;
  for (const redis::Router::Node& node : router().nodes()) {
    if (std::ranges::find(servers_, node.server) == servers_.end()) {
      servers_.push_back(node.server);
    }
  }
}

std::uint64_t SimClient::settled() const {
  std::uint64_t count = 0;
  for (const auto& server : servers_) count += server->stats().commands_settled.load();
  return count;
}

// The gate treats a server as near or far as the last answers say, however it was before: near one,
// a single stream writes while small commands are recent. Requires: no stream is open.
void SimClient::check_distance(redis::Server& server) {
  const auto write = redis::Direction::kWrite;
  server.gate().note_small(now());
  std::size_t entered = 0;
  while (server.gate().try_enter(write, now())) ++entered;
  for (std::size_t left = entered; left > 0; --left) server.gate().leave(write, now());
  const bool far = server.round_trip() >= redis::kFarAway;
  if (entered != (far ? server.gate().limit(write) : 1)) {
    context_.journal.fail(far ? "a server that is far is treated as near"
                              : "a server that is near is treated as far");
  }
}

void SimClient::check_closed() {
  Journal& journal = context_.journal;
  // What settles before there is a map is counted where nobody can see it, so equality is asked
  // only where there always is one.
  ledger_.check_end(settled(), config().topology == redis::Topology::kStandalone);
  if (const std::size_t waiting = router().waiting(); waiting > 0) {
    journal.fail(std::to_string(waiting) + " commands still wait");
  }
  for (const auto& server : servers_) {
    for (const auto direction : {redis::Direction::kRead, redis::Direction::kWrite}) {
      // Closed connections have left, so as many as are permitted may enter.
      std::size_t entered = 0;
      const std::size_t limit = server->gate().limit(direction);
      const Nanos later = journal.now() + kSecond;  // no small command is recent any more
      while (entered < limit && server->gate().try_enter(direction, later)) ++entered;
      if (entered < limit) journal.fail("a stream's place was not given back");
      for (; entered > 0; --entered) server->gate().leave(direction, later);
    }
    check_distance(*server);
    const redis::Stats& stats = server->stats();
    if (stats.connections_opened.load() != stats.connections_lost.load()) {
      journal.fail("connections that were opened and not lost, or the other way round");
    }
  }
  for (std::size_t index = 0; index < network_.size(); ++index) {
    if (network_.wire(index).client_holds && !closed_) journal.fail("a socket is left open");
  }
}

}  // namespace kvferry::sim
