#include "redis/link.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "redis/server_error.hpp"

namespace kvferry::redis {
namespace {

// An answer that another thread brings, or that never comes.
template <typename T>
class Promised {
 public:
  void set(T value) {
    const std::lock_guard lock(mutex_);
    value_ = std::move(value);
    ready_.notify_one();
  }
  std::optional<T> wait(const EventFd& stop, Nanos deadline) {
    constexpr Nanos kLook = 50 * kMilli;  // how often the stop signal is looked at
    std::unique_lock lock(mutex_);
    while (!value_) {
      const Nanos now = monotonic_ns();
      pollfd stopped{.fd = stop.fd(), .events = POLLIN, .revents = 0};
      if (now >= deadline || ::poll(&stopped, 1, 0) > 0) return std::nullopt;
      ready_.wait_for(lock, std::chrono::nanoseconds(std::min(deadline - now, kLook)));
    }
    return std::move(value_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::optional<T> value_;
};

}  // namespace

Result<std::unique_ptr<Link>> Link::open(const LinkContext& context, const net::Endpoint& endpoint,
                                         Greeting greeting, Nanos deadline) {
  std::unique_ptr<Link> link(new Link(context, endpoint));
  if (context.credentials != nullptr) {
    const auto promised = std::make_shared<Promised<Result<Credentials>>>();
    context.credentials->request([promised](const auto& given) { promised->set(given); });
    auto credentials = promised->wait(context.stop, deadline);
    if (!credentials) return link->late("no credentials in time", deadline);
    if (!*credentials) return credentials->error();
    greeting.username = (*credentials)->username;
    greeting.password = (*credentials)->password;
  }
  auto addresses = link->look_up(deadline);
  if (!addresses) return addresses.error();
  Error problem{Errc::kConnect, "no address"};
  for (std::size_t index = 0; index < addresses->size(); ++index) {
    const Nanos now = monotonic_ns();
    const auto left = static_cast<Nanos>(addresses->size() - index);
    const Nanos share = now + std::max<Nanos>(0, deadline - now) / left;
    Outcome outcome = link->connect((*addresses)[index], share);
    if (outcome) outcome = link->greet(greeting, share);
    if (outcome) return link;
    problem = {outcome.error().code, endpoint.text() + ": " + outcome.error().context};
    if (problem.code == Errc::kCertificate || problem.code == Errc::kAuth) break;
  }
  return problem;
}

Result<std::vector<net::Address>> Link::look_up(Nanos deadline) {
  if (net::resolves_without_lookup(endpoint_)) return net::resolve(endpoint_);
  const auto promised = std::make_shared<Promised<Result<std::vector<net::Address>>>>();
  context_.resolver.request(endpoint_, [promised](auto found) { promised->set(std::move(found)); });
  auto addresses = promised->wait(context_.stop, deadline);
  if (!addresses) return late(endpoint_.text() + ": no address in time", deadline);
  return std::move(*addresses);
}

Outcome Link::connect(const net::Address& address, Nanos deadline) {
  auto stream = context_.transport.open(address, endpoint_.host);
  if (!stream) return stream.error();
  stream_ = std::move(*stream);
  for (;;) {
    if (Outcome ready = wait(!stream_->awaits_readable(), deadline); !ready) {
      const bool tls = ready.error().code == Errc::kTimeout && stream_->awaits_readable();
      if (!tls) return ready;
      return Error{Errc::kTimeout,
                   "no answer to the TLS handshake in time; is this a port without TLS?"};
    }
    const net::IoResult io = stream_->finish_connect();
    if (io.state == net::IoState::kOk) return Done{};
    if (io.state != net::IoState::kWouldBlock) return failed(io);
  }
}

Outcome Link::greet(Greeting greeting, Nanos deadline) {
  Handshake handshake(std::move(greeting));
  Outbox outbox;
  handshake.begin(outbox);
  for (;;) {
    if (const Outcome timely = check(deadline); !timely) return timely;
    if (const Outcome sent = flush(outbox, deadline); !sent) return sent;
    std::array<std::byte, 4 * kKiB> bytes;
    const iovec piece{bytes.data(), bytes.size()};
    const net::IoResult io = stream_->receive({&piece, 1});
    if (io.state == net::IoState::kWouldBlock) {
      if (const Outcome ready = wait(false, deadline); !ready) return ready;
      continue;
    }
    if (io.state != net::IoState::kOk) return failed(io);
    const auto state = handshake.receive(std::span(bytes).first(io.bytes), outbox);
    if (state == Handshake::State::kFailed) return handshake.error();
    if (state == Handshake::State::kReady) break;
  }
  info_ = handshake.info();
  return Done{};
}

Outcome Link::flush(Outbox& outbox, Nanos deadline) {
  while (!outbox.empty()) {
    const net::IoResult io = stream_->send(outbox.pieces());
    if (io.state == net::IoState::kOk) {
      outbox.sent(io.bytes);
    } else if (io.state == net::IoState::kWouldBlock) {
      if (const Outcome ready = wait(true, deadline); !ready) return ready;
    } else {
      return failed(io);
    }
  }
  return Done{};
}

Outcome Link::send(std::string_view encoded, Nanos deadline) {
  while (!encoded.empty()) {
    const iovec piece{const_cast<char*>(encoded.data()), encoded.size()};
    const net::IoResult io = stream_->send({&piece, 1});
    if (io.state == net::IoState::kOk) {
      encoded.remove_prefix(io.bytes);
    } else if (io.state == net::IoState::kWouldBlock) {
      if (const Outcome ready = wait(true, deadline); !ready) return ready;
    } else {
      return failed(io);
    }
  }
  return Done{};
}

Result<std::optional<resp::Value>> Link::receive(Nanos deadline) {
  std::array<std::byte, 16 * kKiB> bytes;
  for (bool again = false;; again = true) {
    resp::Value value;
    switch (reader_.next(value)) {
      case resp::ValueReader::State::kValue:
        return std::optional(std::move(value));
      case resp::ValueReader::State::kBad:
        return Error{Errc::kProtocol, endpoint_.text() + ": " + std::string(reader_.error())};
      case resp::ValueReader::State::kNeedMore:
        break;
    }
    if (again) {
      const Outcome timely = check(deadline);
      if (!timely && timely.error().code == Errc::kTimeout) return std::optional<resp::Value>{};
      if (!timely) return timely.error();
    }
    const iovec piece{bytes.data(), bytes.size()};
    const net::IoResult io = stream_->receive({&piece, 1});
    if (io.state == net::IoState::kOk) {
      reader_.feed(std::span(bytes).first(io.bytes));
    } else if (io.state == net::IoState::kWouldBlock) {
      const Outcome ready = wait(false, deadline);
      if (!ready && ready.error().code == Errc::kTimeout) return std::optional<resp::Value>{};
      if (!ready) return ready.error();
    } else {
      return failed(io);
    }
  }
}

Result<resp::Value> Link::call(std::span<const std::string_view> words, Nanos deadline) {
  if (const Outcome sent = send(encode_words(words), deadline); !sent) return sent.error();
  for (;;) {
    auto reply = receive(deadline);
    if (!reply) return reply.error();
    if (!*reply) return Error{Errc::kTimeout, endpoint_.text() + ": no answer in time"};
    if ((*reply)->is_error()) return Error{Errc::kServer, printable((*reply)->text)};
    if ((*reply)->is_push()) {
      if (const Outcome timely = check(deadline); !timely) return timely.error();
      continue;
    }
    return std::move(**reply);
  }
}

// A peer that never stops talking may not keep us here.
Outcome Link::check(Nanos deadline) const {
  if (monotonic_ns() >= deadline) return Error{Errc::kTimeout, "no answer in time"};
  pollfd stopped{.fd = context_.stop.fd(), .events = POLLIN, .revents = 0};
  if (::poll(&stopped, 1, 0) > 0) return Error{Errc::kClosed, "the client is closing"};
  return Done{};
}

// Why a wait for another thread ended without its answer.
Error Link::late(std::string what, Nanos deadline) const {
  const Outcome timely = check(deadline);
  if (!timely && timely.error().code == Errc::kClosed) return timely.error();
  return Error{Errc::kTimeout, std::move(what)};
}

Outcome Link::wait(bool writable, Nanos deadline) {
  const Nanos left = deadline - monotonic_ns();
  if (left <= 0) return Error{Errc::kTimeout, "no answer in time"};
  std::array<pollfd, 2> fds{
      pollfd{.fd = fd(), .events = static_cast<short>(writable ? POLLOUT : POLLIN), .revents = 0},
      pollfd{.fd = context_.stop.fd(), .events = POLLIN, .revents = 0}};
  constexpr Nanos kLongest = 60 * kSecond;
  const Nanos patience = std::min(left, kLongest);
  ::poll(fds.data(), fds.size(), static_cast<int>((patience + kMilli - 1) / kMilli));
  if (fds[1].revents != 0) return Error{Errc::kClosed, "the client is closing"};
  return Done{};  // after a wait that was cut short the caller looks, and waits again
}

Error Link::failed(const net::IoResult& io) const {
  const Errc code = io.state == net::IoState::kRefused ? Errc::kCertificate : Errc::kDisconnect;
  return {code, stream_->failure(io)};
}

std::string encode_words(std::span<const std::string_view> words) {
  std::string text;
  const auto line = [&text](char type, std::size_t number) {
    text.append(1, type).append(std::to_string(number)).append("\r\n");
  };
  line('*', words.size());
  for (const std::string_view word : words) {
    line('$', word.size());
    text.append(word).append("\r\n");
  }
  return text;
}

}  // namespace kvferry::redis
