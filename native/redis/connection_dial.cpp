// Connection, the dialling half: credentials, names, addresses, TLS, the greeting.

#include <algorithm>
#include <array>
#include <utility>

#include "base/best_effort.hpp"

#include "redis/connection.hpp"

namespace kvferry::redis {
namespace {

constexpr int kGreetingTurns = 64;  // of 4 KiB each
// A server that goes on refusing, because the name has not changed yet, is not dialled all the
// time.
constexpr Nanos kRenewedAfter = kSecond;

}  // namespace

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
