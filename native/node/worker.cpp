#include "node/worker.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <exception>
#include <utility>

namespace kvferry::node {
namespace {

constexpr std::uint64_t kMailToken = 0;  // clients count from 1
constexpr std::size_t kScratchBytes = 16 * kKiB;
constexpr std::size_t kPiecesMax = 72;  // of one call; a value of 4 MiB in pages of 64 KiB
constexpr std::size_t kLowWaterBytes = 256 * kKiB;
constexpr int kRoundsMax = 16;  // of one connection, before others have their turn
constexpr Nanos kJudgeEvery = 500 * kMilli;
// What a connection holds is told to others in these steps; so much moved is progress.
constexpr std::size_t kHeldStep = 16 * kKiB;
constexpr std::size_t kHeldPagesStep = 64 * kKiB;
constexpr std::size_t kProgressBytes = kMiB;
constexpr Nanos kLaterTime = 2 * kMilli;

std::size_t total(std::span<const iovec> pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

}  // namespace

UnixMs unix_ms() noexcept {
  timespec ts{};
  ::clock_gettime(CLOCK_REALTIME, &ts);
  return static_cast<UnixMs>(ts.tv_sec) * 1000 + ts.tv_nsec / 1'000'000;
}

Result<std::unique_ptr<NodeWorker>> NodeWorker::open(Context& context, PaceLimits pace) {
  auto poller = net::Poller::open();
  if (!poller) return poller.error();
  auto event = EventFd::open();
  if (!event) return event.error();
  const int mail = event->fd();
  std::unique_ptr<NodeWorker> worker(
      new NodeWorker(context, pace, std::move(*poller), std::move(*event)));
  const Outcome watched = worker->poller_.watch(mail, kMailToken, true, false);
  if (!watched) return watched.error();
  return worker;
}

NodeWorker::NodeWorker(Context& context, PaceLimits pace, net::Poller poller, EventFd event)
    : context_(context),
      pace_(pace),
      poller_(std::move(poller)),
      mailbox_(std::move(event)),
      scratch_(kScratchBytes) {}

NodeWorker::~NodeWorker() {
  for (const auto& [id, connection] : connections_) context_.clients.remove(id);
}

void NodeWorker::stop() noexcept {
  stopping_.store(true, std::memory_order_relaxed);
  mailbox_.wake();
}

void NodeWorker::run() {
  while (!stopping_.load(std::memory_order_relaxed)) {
    const auto ready = poller_.wait(again_.empty() && later_.empty() ? kJudgeEvery : 0);
    std::vector<std::uint64_t> turns = std::exchange(again_, {});
    bool mail = false;
    for (const net::Ready& one : ready) {
      if (one.token == kMailToken) {
        mail = true;
        continue;
      }
      const auto at = connections_.find(one.token);
      if (at == connections_.end()) continue;
      if (one.readable) at->second->readable = true;
      if (!at->second->waits) turns.push_back(one.token);
    }
    if (mail) read_mail();
    for (const std::uint64_t id : turns) serve(id);
    // Who asks for much waits for those who ask for little.
    Nanos now = monotonic_ns();
    const Nanos end = now + kLaterTime;
    for (std::size_t count = later_.size(); count > 0 && now < end; --count) {
      const std::uint64_t id = later_.front();
      later_.pop_front();
      if (const auto at = connections_.find(id); at != connections_.end()) {
        at->second->waits = false;
        serve(id);
      }
      now = monotonic_ns();
    }
    if (now - judged_at_ >= kJudgeEvery) judge_paces(now);
  }
}

void NodeWorker::read_mail() {
  Mailbox::Mail mail = mailbox_.take();
  for (NewConnection& connection : mail.connections) add(std::move(connection));
  for (const std::uint64_t id : mail.clients) {
    const auto at = connections_.find(id);
    if (at == connections_.end()) continue;
    at->second->session.deliver();
    serve(id);
  }
}

void NodeWorker::add(NewConnection connection) {
  Counters::add(context_.counters.connections);
  const auto id = context_.clients.add(connection.address, unix_ms(), &mailbox_);
  if (!id) {
    Counters::add(context_.counters.rejected);
    count_.fetch_sub(1, std::memory_order_relaxed);
    std::string text = "-ERR max number of clients reached\r\n";
    const iovec piece{.iov_base = text.data(), .iov_len = text.size()};
    (void)connection.stream->send({&piece, 1});  // the end of the connection says it as well
    return;
  }
  const bool on_unix = connection.address.starts_with("unix:");
  connections_.emplace(
      *id, std::make_unique<Connection>(Connection{.stream = std::move(connection.stream),
                                                   .session = Session(context_, *id, on_unix),
                                                   .since = monotonic_ns()}));
  serve(*id);
}

void NodeWorker::end(std::uint64_t id) {
  const auto at = connections_.find(id);
  poller_.forget(at->second->stream->fd());
  context_.clients.remove(id);
  connections_.erase(at);
  count_.fetch_sub(1, std::memory_order_relaxed);
}

void NodeWorker::serve(std::uint64_t id) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  bool alive = false;
  try {
    alive = serve(id, *at->second);
  } catch (const std::exception&) {  // e.g. no memory: others are served on
    Counters::add(context_.counters.failed);
  }
  if (!alive) end(id);
}

bool NodeWorker::serve(std::uint64_t id, Connection& connection) {
  if (!connection.connected && !greet(connection)) return false;
  bool moved = connection.connected;
  for (int round = 0; moved; ++round) {
    if (round > 0 && connection.session.has_more()) {
      if (!std::exchange(connection.waits, true)) later_.push_back(id);
      break;
    }
    if (round == kRoundsMax) {
      again_.push_back(id);
      break;
    }
    moved = false;
    if (!receive(connection, moved) || !flush(connection, moved)) return false;
    if (connection.session.finished()) return false;
  }
  tell_held(id, connection);
  if (connection.session.missed_pages()) context_.clients.relieve(monotonic_ns());
  return watch(id, connection);
}

void NodeWorker::tell_held(std::uint64_t id, Connection& connection) {
  const std::size_t bytes = connection.session.held_bytes() / kHeldStep * kHeldStep;
  const std::size_t pages = connection.session.held_page_bytes() / kHeldPagesStep * kHeldPagesStep;
  Clients::Held& held = connection.held;
  const bool nothing = held.bytes == 0 && held.page_bytes == 0;
  if (bytes == held.bytes && pages == held.page_bytes) {
    if (nothing || connection.moved_bytes < kProgressBytes) return;
  }
  const Nanos now = monotonic_ns();
  if (nothing || connection.moved_bytes >= kProgressBytes) {
    held.since = now;
    connection.moved_bytes = 0;
  }
  held.bytes = bytes;
  held.page_bytes = pages;
  context_.clients.hold(id, held, now);
}

bool NodeWorker::greet(Connection& connection) {
  const net::IoResult result = connection.stream->finish_connect();
  connection.connected = result.state == net::IoState::kOk;
  if (connection.connected || result.state == net::IoState::kWouldBlock) return true;
  Counters::add(context_.counters.tls_refused);
  return false;
}

bool NodeWorker::receive(Connection& connection, bool& moved) {
  Session& session = connection.session;
  if (session.has_more()) {
    session.resume(unix_ms());
    moved = true;
    return true;
  }
  if (!connection.readable || !session.wants_bytes()) return true;
  std::array<iovec, kPiecesMax> pieces;
  const std::size_t count = session.plan(pieces, scratch_);
  const std::span<const iovec> planned{pieces.data(), count};
  const net::IoResult result = connection.stream->receive(planned);
  if (result.state == net::IoState::kWouldBlock) {
    connection.readable = false;
    return true;
  }
  if (result.state != net::IoState::kOk) return false;
  connection.readable = result.bytes == total(planned);
  moved = true;
  connection.in.moved(result.bytes);
  connection.moved_bytes += result.bytes;
  Counters::add(context_.counters.received_bytes, result.bytes);
  session.received(result.bytes, unix_ms());
  if (!session.mid_request()) connection.in.done();
  // So much of this value must come before anything else can, so there is no need to look earlier.
  connection.stream->set_receive_low_water(
      std::clamp<std::size_t>(session.value_remaining(), 1, kLowWaterBytes));
  return true;
}

bool NodeWorker::flush(Connection& connection, bool& moved) {
  Session& session = connection.session;
  while (session.unsent_bytes() > 0) {
    std::array<iovec, kPiecesMax> pieces;
    const std::size_t count = session.gather(pieces);
    const net::IoResult result = connection.stream->send({pieces.data(), count});
    if (result.state == net::IoState::kWouldBlock) return true;
    if (result.state != net::IoState::kOk) return false;
    moved = true;
    connection.out.moved(result.bytes);
    connection.moved_bytes += result.bytes;
    Counters::add(context_.counters.sent_bytes, result.bytes);
    session.sent(result.bytes, unix_ms());
  }
  connection.out.done();
  return true;
}

bool NodeWorker::watch(std::uint64_t id, Connection& connection) {
  const Session& session = connection.session;
  bool reads = session.wants_bytes();
  bool writes = session.unsent_bytes() > 0;
  if (!connection.connected) {
    reads = connection.stream->awaits_readable();
    writes = !reads;
  }
  const bool watched = connection.watches_reading || connection.watches_writing;
  if (watched && reads == connection.watches_reading && writes == connection.watches_writing) {
    return true;
  }
  connection.watches_reading = reads;
  connection.watches_writing = writes;
  return poller_.watch(connection.stream->fd(), id, reads, writes).has_value();
}

void NodeWorker::judge_paces(Nanos now) {
  judged_at_ = now;
  std::vector<std::uint64_t> slow, silent;
  const UnixMs unix_now = unix_ms();
  for (auto& [id, connection] : connections_) {
    connection->session.expire_leases(unix_now);
    const Session& session = connection->session;
    const std::size_t due = connection->connected ? session.due_bytes() : 1;
    const bool in = connection->in.too_slow(pace_, due, now);
    const bool out = connection->out.too_slow(pace_, session.unsent_bytes(), now);
    if (in || out) {
      slow.push_back(id);
    } else if (!session.spoke() && now - connection->since >= pace_.silence) {
      silent.push_back(id);
    } else {
      tell_held(id, *connection);
    }
  }
  Counters::add(context_.counters.slow_closed, slow.size());
  Counters::add(context_.counters.silent_closed, silent.size());
  for (const std::uint64_t id : slow) end(id);
  for (const std::uint64_t id : silent) end(id);
}

}  // namespace kvferry::node
