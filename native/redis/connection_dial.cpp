// Connection, the dialling half: credentials, names, addresses, TLS, the greeting.

#include <algorithm>
#include <array>
#include <utility>

#include "base/best_effort.hpp"

#include "redis/connection.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kNextAddressAfter = 300 * kMilli;  // RFC 8305 names 250 ms
constexpr int kGreetingTurns = 64;                 // of 4 KiB each

}  // namespace

void Connection::dial(Nanos now) {
  begin_dial(now);
  if (environment_.credentials == nullptr) return look_up(now);
  state_ = State::kAuthorizing;
  environment_.ask_credentials(token_, dial_);
}

void Connection::begin_dial(Nanos now) {
  ++dial_;
  dial_deadline_ = address_deadline_ = add_time(now, config_.connect_timeout);
  addresses_.clear();
  address_index_ = 0;
  shortcut_ = way_ = 0;
}

void Connection::move_over(Nanos now) {
  const std::uint64_t version = server_.shortcut_version();
  if (version == 0 || version == way_) return stay();
  moving_ = moving_ || server_.begin_move();
  if (!moving_ || busy() || streaming_ || held_) return;
  leave_unix();
  drop_stream();
  server_.on_left(role_ == Role::kData);
  begin_dial(now);
  // Nobody need be asked: what the others authenticated with last is good here, too.
  if (environment_.credentials != nullptr) credentials_ = environment_.credentials->current();
  look_up(now);
}

void Connection::stay() {
  if (std::exchange(moving_, false)) server_.end_move();
}

void Connection::leave_unix() noexcept {
  if (std::exchange(on_unix_, false)) server_.note_unix(-1);
}

void Connection::on_credentials(std::uint64_t dial, const Result<Credentials>& credentials,
                                Nanos now) {
  if (state_ != State::kAuthorizing || dial != dial_) return;
  if (!credentials) return dial_failed(credentials.error(), now);
  credentials_ = *credentials;
  look_up(now);
}

void Connection::look_up(Nanos now) {
  state_ = State::kResolving;
  const bool insists = config_.same_host == SameHostWay::kUnix && !server_.endpoint().is_unix();
  if (!insists && net::resolves_without_lookup(server_.endpoint())) {
    on_resolved(dial_, net::resolve(server_.endpoint()), now);
  } else {
    environment_.resolve(server_.endpoint(), token_, dial_);
  }
}

void Connection::on_resolved(std::uint64_t dial, Result<std::vector<net::Address>> addresses,
                             Nanos now) {
  if (state_ != State::kResolving || dial != dial_) return;
  if (!addresses) return dial_failed(addresses.error(), now);
  addresses_ = std::move(*addresses);
  address_index_ = 0;
  const Shortcut shortcut = server_.shortcut();
  shortcut_ = shortcut.version;
  if (shortcut_ != 0) addresses_.insert(addresses_.begin(), shortcut.address);
  why_ = "no address accepted the connection";
  connect_next(now);
}

void Connection::connect_next(Nanos now) {
  state_ = State::kConnecting;
  while (address_index_ < addresses_.size()) {
    drop_stream();
    if (std::exchange(way_, 0) != 0) server_.lose_shortcut();  // it did not let us in
    if (address_index_ == 0) way_ = shortcut_;
    auto stream =
        environment_.transport.open(addresses_[address_index_++], server_.endpoint().host);
    if (!stream) {
      why_ = stream.error().context;
      if (stream.error().code == Errc::kCertificate) return refused(now);
      continue;
    }
    stream_ = std::move(*stream);
    address_deadline_ = std::min(share_of_time(now), add_time(now, kNextAddressAfter));
    if (!environment_.watcher.watch(stream_->fd(), token_, false, true)) {
      return dial_failed({Errc::kSystem, "the poller takes no more sockets"}, now);
    }
    return;
  }
  dial_failed({Errc::kConnect, server_.endpoint().text() + ": " + why_}, now);
}

// When the present address has had its share of the time that is left for dialling.
Nanos Connection::share_of_time(Nanos now) const noexcept {
  const auto others = static_cast<Nanos>(addresses_.size() - address_index_);
  return now + (dial_deadline_ - now) / (others + 1);
}

void Connection::dial_failed(Error error, Nanos now) {
  if (way_ != 0 && now < dial_deadline_) {  // whatever it is, the usual way is still there
    why_ = std::move(error.context);
    return connect_next(now);
  }
  if (std::exchange(way_, 0) != 0) server_.lose_shortcut();
  drop_stream();
  state_ = State::kWaiting;
  dial_at_ = add_time(now, backoff_.next());
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
  dial_failed({Errc::kCertificate, server_.endpoint().text() + ": " + why_}, now);
}

void Connection::on_connecting(Nanos now) {
  const net::IoResult io = stream_->finish_connect();
  if (io.state == net::IoState::kOk) return greet(now);
  if (io.state == net::IoState::kWouldBlock) {
    const bool readable = stream_->awaits_readable();
    if (readable) address_deadline_ = share_of_time(now);  // TCP has answered; TLS may take longer
    return watch(readable, !readable);
  }
  why_ = stream_->failure(io);
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
  greeted_at_ = now;
  address_deadline_ = share_of_time(now);
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
      why_ = stream_->failure(io);
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
  last_progress_ = now;
  next_deadline_ = kNever;
  server_.note_round_trip(now - greeted_at_);
  backoff_.reset();
  on_unix_ = role_ == Role::kData && addresses_[address_index_ - 1].family() == AF_UNIX;
  if (on_unix_) server_.note_unix(1);
  server_.on_up(role_ == Role::kData, info);
  handshake_.reset();
  stay();
}

}  // namespace kvferry::redis
