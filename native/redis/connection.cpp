#include "redis/connection.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/best_effort.hpp"
#include "redis/encode.hpp"
#include "resp/writer.hpp"

namespace kvferry::redis {
namespace {

// What one connection may receive before the others get their turn.
constexpr std::size_t kTurnBytes = 64 * kMiB;
constexpr std::size_t kTurnReceives = 256;
constexpr std::size_t kLowWaterBytesFarMin = 64 * kKiB;
constexpr std::size_t kLowWaterBytesFarMax = 512 * kKiB;
constexpr std::size_t kLowWaterBytesNearMin = kMiB;
constexpr std::size_t kLowWaterBytesNearMax = 2 * kMiB;

constexpr int kGreetingTurns = 64;  // of 4 KiB each
// A server that goes on refusing, because the name has not changed yet, is not dialled all the
// time.
constexpr Nanos kRenewedAfter = kSecond;

}  // namespace

Connection::Connection(Server& server, const Environment& environment, std::uint64_t token,
                       Role role, bool first, std::uint64_t seed)
    : server_(server),
      config_(server.config()),
      environment_(environment),
      token_(token),
      role_(role),
      first_(first),
      dial_(config_, seed),
      replies_(*this, config_.drain_bytes_max, config_.value_bytes_max),
      liveness_(config_.stall_timeout, config_.ping_interval),
      pacing_(server_, role, environment.worker, outbox_, replies_, liveness_, *this) {}

// --- Ending ---

void Connection::end(End how, Reason why, Nanos now) {
  now_ = now;
  const std::string text = server_.endpoint().text() + ": " + std::string(why.text);
  lose(how, {text, why.code}, now);
}

void Connection::lose(End how, Reason reason, Nanos now) {
  leave_unix();
  stay();
  drop_stream();
  state_ = State::kWaiting;
  dial_.pause(now);
  give_back(how, reason, now);
  best_effort(
      [&] { server_.log(LogLevel::kInfo, "connection lost: " + std::string(reason.text)); });
  if (how != End::kWithdrawn) {
    server_.stats().connections_broken.fetch_add(1, std::memory_order_relaxed);
  }
  server_.on_lost(role_ == Role::kData, how == End::kSilent, reason, now);
  server_.wake_workers();  // others may take what was given back
}

Error Connection::failure(const net::IoResult& io, Errc usual) const {
  const bool refused = io.state == net::IoState::kRefused;
  return {refused ? Errc::kCertificate : usual, stream_->failure(io)};
}

void Connection::give_back(End how, Reason reason, Nanos now) {
  replies_.abandon([&](Work work) {
    Command& command = *work.command;
    if (work.batch->cancelled()) {
      server_.settle(work, Status::kCancelled, {});
    } else if (work.batch->options().deadline <= now) {
      server_.settle(work, Status::kTimeout, {});
    } else if (how != End::kWithdrawn && ++command.attempts >= config_.attempts_max) {
      server_.settle(work, Status::kUnavailable, reason);
    } else {
      server_.stats().commands_retried.fetch_add(1, std::memory_order_relaxed);
      server_.put_back(work);
    }
  });
  pacing_.leave_stream(now);
}

void Connection::on_no_memory(Nanos now) {
  if (state_ == State::kShut) return;
  now_ = now;
  if (state_ == State::kUp) return lose(End::kBroken, "out of memory", now);
  give_back(End::kBroken, "out of memory", now);  // it may have been ending
  dial_failed({Errc::kSystem, "out of memory"}, now);
}

void Connection::drop_stream() {
  if (stream_) environment_.watcher.forget(stream_->fd());
  // What was sent and not answered is about to be repeated elsewhere, or given up. A proper end
  // would still deliver it, perhaps behind a newer value of the same key.
  if (state_ == State::kUp && (pacing_.busy() || answered_early_)) stream_->reset();
  stream_.reset();
  pacing_.drop();
  liveness_.ended();
  answered_early_ = false;
  more_ = false;
  watching_writable_ = false;
}

void Connection::shut_down(Nanos now) {
  now_ = now;
  const bool was_up = state_ == State::kUp;
  leave_unix();
  stay();
  drop_stream();
  state_ = State::kShut;
  const bool elsewhere = server_.retired();
  replies_.abandon([&](Work work) {
    if (elsewhere) return server_.put_back(work);
    server_.settle(work, Status::kCancelled, "the client was closed");
  });
  pacing_.leave_stream(now);
  if (was_up) server_.stats().connections_lost.fetch_add(1, std::memory_order_relaxed);
}

// --- Timers ---

Nanos Connection::tick(Nanos now) {
  switch (state_) {
    case State::kShut:
      return kNever;
    case State::kWaiting:
      // While the breaker is open one connection probes; the others wait for its success.
      if (!server_.available() && role_ == Role::kData && !first_) return kNever;
      if (now < dial_.begins_at()) return dial_.begins_at();
      dial(now);
      return state_ == State::kWaiting ? dial_.begins_at() : dial_.due();
    case State::kAuthorizing:
    case State::kResolving:
    case State::kConnecting:
    case State::kGreeting:
      return tick_dialling(now);
    case State::kUp:
      break;
  }
  const bool acted = more_ || liveness_.deadline_passed(now);
  if (more_) on_replies(now);
  if (liveness_.deadline_passed(now)) release(now);
  if (state_ == State::kUp && replies_.overdue() > 0 && liveness_.drains_too_long(now)) {
    end(End::kWithdrawn, "what was withdrawn takes too long to drain", now);
  }
  if (state_ != State::kUp) return dial_.begins_at();
  if (acted) return now;  // there may be room for more work, or a place to leave
  return tick_up(now);
}

Nanos Connection::tick_up(Nanos now) {
  const bool unmeasured = role_ == Role::kSmall && server_.unmeasured();
  const Liveness::Decision decision =
      liveness_.decide({.busy = pacing_.busy(),
                        .draining = replies_.overdue() > 0,
                        .sends_values = pacing_.sends_values(),
                        .suspected_at = server_.suspected_at(),
                        .unmeasured = unmeasured,
                        .beside_values = unmeasured && server_.gate().in_use()},
                       now);
  switch (decision.action) {
    case Liveness::Action::kWait:
      break;
    case Liveness::Action::kLookAtUnsent:
      liveness_.note_unsent(stream_->unsent_bytes());
      break;
    case Liveness::Action::kCheckStall:
      on_replies(now);  // the low-water mark may have hidden what came
      if (state_ == State::kUp && liveness_.progressed_at(now)) return now;
      if (state_ == State::kUp && !still_sends(now)) {
        end(End::kSilent, "no byte moved within the stall limit", now);
      }
      if (state_ != State::kUp) return dial_.begins_at();
      break;
    case Liveness::Action::kPing:
      liveness_.pinged(now);
      ping(now);
      break;
    case Liveness::Action::kMeasure:
      liveness_.measured(now);
      ping(now);
      break;
  }
  return decision.next;
}

bool Connection::still_sends(Nanos now) {
  return pacing_.sends_values() && liveness_.still_sends(stream_->unsent_bytes(), now);
}

void Connection::ping(Nanos now) {
  resp::Writer writer(outbox_.text_space());
  outbox_.take_text(writer.command(1).bulk("PING").written().size());
  replies_.expect({});
  flush(now);
}

void Connection::release(Nanos now) {
  if (state_ != State::kUp) return;
  now_ = now;
  const bool can_drain = replies_.release(now);
  liveness_.released(replies_.next_deadline(), replies_.overdue() > 0, now);
  if (!can_drain) {
    end(End::kWithdrawn, "more is owed than may be drained", now);
  } else if (answered_early_) {
    end(End::kWithdrawn, "a value was withdrawn while it was being sent", now);
  }
}

// --- Sending ---

void Connection::pump(Nanos now) {
  if (state_ != State::kUp) return;
  now_ = now;
  if (liveness_.probing()) return pacing_.pass_on();
  if (environment_.credentials != nullptr) authenticate_again(now);
  if (!pacing_.pump(now)) return;
  if (!outbox_.empty() && !send(now)) return;
  move_over(now);
}

bool Connection::send(Nanos now) {
  if (!watching_writable_) flush(now);
  return state_ == State::kUp;
}

// Tokens expire: a connection that is up proves itself again, between two commands.
void Connection::authenticate_again(Nanos now) {
  const std::uint64_t version = environment_.credentials->version();
  if (version == credentials_.version || pacing_.holds_value() || replies_.full() ||
      !outbox_.empty())
    return;
  credentials_ = environment_.credentials->current();
  if (!pacing_.busy()) liveness_.progressed(now);
  encode_auth(credentials_.username, credentials_.password, outbox_);
  replies_.expect({});
}

void Connection::flush(Nanos now) {
  while (!outbox_.empty()) {
    const auto pieces = outbox_.pieces();
    std::size_t planned = 0;
    for (const iovec& piece : pieces) planned += piece.iov_len;
    const net::IoResult io = stream_->send(pieces);
    server_.stats().sends.fetch_add(1, std::memory_order_relaxed);
    if (io.state == net::IoState::kWouldBlock) return watch(true, true);
    if (io.state != net::IoState::kOk) {
      Error why = failure(io, state_ == State::kUp ? Errc::kDisconnect : Errc::kConnect);
      if (state_ == State::kUp) return end(End::kBroken, why, now);
      why.context.insert(0, server_.endpoint().text() + ": ");
      return dial_failed(std::move(why), now);
    }
    server_.stats().bytes_sent.fetch_add(io.bytes, std::memory_order_relaxed);
    outbox_.sent(io.bytes);
    liveness_.sent(now, outbox_.sent_total());
    if (io.bytes < planned) return watch(true, true);  // no room is left for more
  }
  watch(true, false);
}

void Connection::watch(bool readable, bool writable) {
  if (state_ == State::kUp && watching_writable_ == writable) return;
  watching_writable_ = writable;
  // Cannot fail: the descriptor is watched already.
  [[maybe_unused]] const Outcome outcome =
      environment_.watcher.watch(stream_->fd(), token_, readable, writable);
}

// --- Receiving ---

void Connection::on_ready(const net::Ready& ready, Nanos now) {
  now_ = now;
  switch (state_) {
    case State::kConnecting:
      return on_connecting(now);
    case State::kGreeting:
      if (ready.writable) flush(now);
      if (ready.readable && state_ == State::kGreeting) on_greeting(now);
      return;
    case State::kUp:
      if (ready.readable) on_replies(now);
      if (ready.writable && state_ == State::kUp) flush(now);
      return;
    default:
      return;
  }
}

void Connection::on_replies(Nanos now) {
  // Whoever sends without end may not keep the thread: tick() goes on with what is left.
  more_ = false;
  for (std::size_t taken = 0;;) {
    const auto pieces = replies_.plan();
    std::size_t planned = 0;
    for (const iovec& piece : pieces) planned += piece.iov_len;
    const net::IoResult io = stream_->receive(pieces);
    server_.stats().receives.fetch_add(1, std::memory_order_relaxed);
    if (io.state == net::IoState::kWouldBlock) break;
    if (io.state != net::IoState::kOk)
      return end(End::kBroken, failure(io, Errc::kDisconnect), now);
    taken += std::max(io.bytes, kTurnBytes / kTurnReceives);
    if (const auto took = liveness_.received(now)) {
      server_.note_round_trip(took->time, took->at_most);
    }
    server_.stats().bytes_received.fetch_add(io.bytes, std::memory_order_relaxed);
    const bool sound = replies_.received(io.bytes);
    server_.stats().content_received.fetch_add(
        io.bytes + static_cast<std::size_t>(replies_.gained()), std::memory_order_relaxed);
    if (!sound) {
      // What else was in flight does not pay for a choice of ours.
      return end(replies_.declined() ? End::kWithdrawn : End::kBroken, replies_.error(), now);
    }
    if (answered_early_) return end(End::kBroken, "an answer came before its value was sent", now);
    if (replies_.wants_reconnect()) {
      server_.renew(now);
      return end(End::kBroken, "the server asks to reconnect", now);
    }
    if (io.bytes < planned) break;  // the socket is empty for now
    more_ = taken >= kTurnBytes;    // TLS may hold bytes that no poller knows of
    if (more_) break;
  }
  // Few large receives instead of one for each segment: a wake-up costs as much as copying 50 KiB.
  // A near server and the client do half of a large value each at the same time; a shorter one is
  // received at once. Far away the window has to stay open.
  const std::uint64_t owed = replies_.owed();
  std::size_t step = 1;
  if (owed > 0) {
    const std::size_t value = replies_.landed() + owed;
    step = server_.round_trip() < kFarAway
               ? std::clamp(value / 2, kLowWaterBytesNearMin, kLowWaterBytesNearMax)
               : std::clamp(value / 8, kLowWaterBytesFarMin, kLowWaterBytesFarMax);
  }
  stream_->set_receive_low_water(std::clamp<std::size_t>(owed, 1, step));
}

void Connection::settled(Work work, Status status, Reason why) {
  const Verb verb = work.batch->options().verb;
  const bool lends = verb == Verb::kSet || verb == Verb::kCall;
  const bool withdrawn = status == Status::kCancelled || status == Status::kTimeout;
  std::string early;
  if (!pacing_.answered(work) && (lends || !withdrawn)) {
    // No reply can be its reply. The buffer of a SET, or the text of a call, goes back to the
    // caller now, so nothing may be sent from it any more.
    stop_sending();
    if (!withdrawn) {
      status = Status::kServerError;
      early = "the server answered before the command was sent";
      // It may say why, e.g. that no value may be so long.
      if (!why.text.empty()) early.append(": ").append(why.text);
      why = early;
    }
  }
  if (status == Status::kOk) pacing_.completed(work, now_);
  if (status == Status::kUnavailable) server_.suspect();  // CLUSTERDOWN, READONLY, ...
  server_.settle(work, status, why);
}

void Connection::redirected(Work work, std::string_view answer) {
  // Another connection may send it before this one has: then from two places at once.
  if (!pacing_.answered(work)) stop_sending();
  server_.redirected(work, answer);
}

void Connection::stop_sending() {
  pacing_.stop_sending();
  answered_early_ = true;
}

// --- Dialling ---
// Credentials, names, addresses, TLS, the greeting.

void Connection::dial(Nanos now) {
  dial_.begin(now);
  dialled_at_ = now;
  if (environment_.credentials == nullptr) return look_up(now);
  state_ = State::kAuthorizing;
  environment_.ask_credentials(token_, dial_.number());
}

Nanos Connection::tick_dialling(Nanos now) {
  switch (dial_.late(now)) {
    case Dial::Late::kNo:
      break;
    case Dial::Late::kAttempt:
      dial_failed({Errc::kTimeout, server_.endpoint().text() + ": " + awaited()}, now);
      break;
    case Dial::Late::kAddress:
      dial_.why = "no answer in time";
      connect_next(now);
      break;
  }
  return state_ == State::kWaiting ? dial_.begins_at() : dial_.due();
}

void Connection::move_over(Nanos now) {
  const std::uint64_t version = server_.shortcut_version();
  const bool to_unix = version != 0 && version != dial_.shortcut();
  const bool stale = dialled_at_ <= server_.renewed_at() && now - dialled_at_ >= kRenewedAfter;
  if (!to_unix && !stale) return stay();
  if (!pacing_.paused() && server_.begin_move()) pacing_.pause();
  if (!pacing_.paused() || pacing_.busy() || pacing_.streams()) return;
  leave_unix();
  drop_stream();
  server_.on_left(role_ == Role::kData);
  // A move within one server is no loss.
  if (stale) server_.stats().connections_lost.fetch_add(1, std::memory_order_relaxed);
  dial_.begin(now);
  dialled_at_ = now;
  // Nobody need be asked: what the others authenticated with last is good here, too.
  if (environment_.credentials != nullptr) credentials_ = environment_.credentials->current();
  look_up(now);
}

void Connection::stay() {
  if (pacing_.resume()) server_.end_move();
}

void Connection::leave_unix() noexcept {
  if (std::exchange(on_unix_, false)) server_.note_unix(-1);
}

void Connection::on_credentials(std::uint64_t dial, const Result<Credentials>& credentials,
                                Nanos now) {
  if (state_ != State::kAuthorizing || dial != dial_.number()) return;
  if (!credentials) return dial_failed(credentials.error(), now);
  credentials_ = *credentials;
  look_up(now);
}

void Connection::look_up(Nanos now) {
  state_ = State::kResolving;
  const bool insists = config_.same_host == SameHostWay::kUnix && !server_.endpoint().is_unix();
  if (!insists && net::resolves_without_lookup(server_.endpoint())) {
    on_resolved(dial_.number(), net::resolve(server_.endpoint()), now);
  } else {
    environment_.resolve(server_.endpoint(), token_, dial_.number());
  }
}

void Connection::on_resolved(std::uint64_t dial, Result<std::vector<net::Address>> addresses,
                             Nanos now) {
  if (state_ != State::kResolving || dial != dial_.number()) return;
  if (!addresses) return dial_failed(addresses.error(), now);
  dial_.resolved(std::move(*addresses), server_.shortcut());
  connect_next(now);
}

void Connection::connect_next(Nanos now) {
  state_ = State::kConnecting;
  while (dial_.has_next()) {
    drop_stream();
    if (dial_.leave_shortcut()) server_.lose_shortcut();  // it did not let us in
    auto stream = environment_.transport.open(dial_.next(now), server_.endpoint().host);
    if (!stream) {
      dial_.why = stream.error().context;
      if (stream.error().code == Errc::kCertificate) return refused(now);
      continue;
    }
    stream_ = std::move(*stream);
    if (!environment_.watcher.watch(stream_->fd(), token_, false, true)) {
      return dial_failed({Errc::kSystem, "the poller takes no more sockets"}, now);
    }
    return;
  }
  dial_failed({Errc::kConnect, server_.endpoint().text() + ": " + dial_.why}, now);
}

void Connection::dial_failed(Error error, Nanos now) {
  if (dial_.may_go_on(now)) {
    dial_.why = std::move(error.context);
    return connect_next(now);
  }
  if (dial_.leave_shortcut()) server_.lose_shortcut();
  drop_stream();
  state_ = State::kWaiting;
  dial_.pause(now);
  best_effort([&] { server_.log(LogLevel::kDebug, "cannot connect: " + error.context); });
  server_.on_dial_failed(error);
  stay();
}

const char* Connection::awaited() const noexcept {
  if (state_ == State::kAuthorizing) return "no credentials in time";
  if (state_ == State::kConnecting && stream_ && stream_->awaits_readable()) {
    return "no answer to the TLS handshake in time; is this a port without TLS?";
  }
  return "no answer in time";
}

// A matter of certificates, which the next address would not mend.
void Connection::refused(Nanos now) {
  dial_failed({Errc::kCertificate, server_.endpoint().text() + ": " + dial_.why}, now);
}

void Connection::on_connecting(Nanos now) {
  const net::IoResult io = stream_->finish_connect();
  if (io.state == net::IoState::kOk) return greet(now);
  if (io.state == net::IoState::kWouldBlock) {
    const bool readable = stream_->awaits_readable();
    if (readable) dial_.answered(now);  // TCP has; TLS may take longer
    return watch(readable, !readable);
  }
  dial_.why = stream_->failure(io);
  if (io.state == net::IoState::kRefused) return refused(now);
  connect_next(now);
}

void Connection::greet(Nanos now) {
  state_ = State::kGreeting;
  Greeting greeting = config_;
  if (environment_.credentials != nullptr) {
    greeting.username = credentials_.username;
    greeting.password = credentials_.password;
  }
  greeting.read_only =
      config_.topology == Topology::kCluster && server_.role() == NodeRole::kReplica;
  handshake_ = std::make_unique<Handshake>(std::move(greeting));
  handshake_->begin(outbox_);
  dial_.greets(now);
  watch(true, false);
  flush(now);
}

void Connection::on_greeting(Nanos now) {
  std::array<std::byte, 4 * kKiB> bytes;
  const iovec piece{bytes.data(), bytes.size()};
  net::IoResult io{.bytes = bytes.size()};
  // A stream that filled the buffer may hold more that no poller knows of.
  for (int turns = 0; state_ == State::kGreeting && io.bytes == bytes.size(); ++turns) {
    if (turns == kGreetingTurns) {
      return dial_failed(
          {Errc::kProtocol, server_.endpoint().text() + ": the greeting is too long"}, now);
    }
    io = stream_->receive({&piece, 1});
    if (io.state == net::IoState::kWouldBlock) return;
    if (io.state != net::IoState::kOk) {
      dial_.why = stream_->failure(io);
      // With TLS 1.3 a server refuses our certificate only now.
      return io.state == net::IoState::kRefused ? refused(now) : connect_next(now);
    }
    switch (handshake_->receive(std::span(bytes).first(io.bytes), outbox_)) {
      case Handshake::State::kRunning:
        flush(now);
        break;
      case Handshake::State::kReady:
        return become_up(now);
      case Handshake::State::kFailed: {
        Error error = handshake_->error();
        error.context = server_.endpoint().text() + ": " + error.context;
        return dial_failed(std::move(error), now);
      }
    }
  }
}

void Connection::become_up(Nanos now) {
  const ServerInfo& info = handshake_->info();
  const bool replica = info.role == "replica" || info.role == "slave";
  if (config_.topology == Topology::kSentinel && server_.role() == NodeRole::kPrimary && replica) {
    server_.suspect();
    return dial_failed(
        {Errc::kServer, server_.endpoint().text() + ": it is not the master any more"}, now);
  }
  state_ = State::kUp;
  liveness_.up(now);
  server_.note_greeting(dial_.greeting_took(now));
  dial_.succeeded();
  on_unix_ = role_ == Role::kData && dial_.address().family() == AF_UNIX;
  if (on_unix_) server_.note_unix(1);
  server_.on_up(role_ == Role::kData, info);
  handshake_.reset();
  stay();
}

}  // namespace kvferry::redis
