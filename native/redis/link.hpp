#pragma once
// Link: a control connection: one question, one answer, and pushes in between. It blocks the thread
// that uses it, never longer than the deadline of the call; a stop signal ends every wait.
//
// Threads: one at a time; never an I/O thread. Lifetime: the context outlives it.
// Failure: every Error is final but kServer of call(), which is the server's own words.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/event_fd.hpp"
#include "net/resolver.hpp"
#include "net/transport.hpp"
#include "redis/config.hpp"
#include "redis/credentials.hpp"
#include "redis/handshake.hpp"
#include "resp/value.hpp"

namespace kvferry::redis {

// What links share. `stop` is signalled once, for good.
struct LinkContext {
  net::Transport& transport;
  net::Resolver& resolver;
  CredentialSource* credentials;  // null: those of the greeting
  const EventFd& stop;
};

class Link {
 public:
  // Connects and greets. Fails with: kResolve, kConnect, kTimeout, kCertificate, kAuth, kServer,
  // kClosed (stopped).
  static Result<std::unique_ptr<Link>> open(const LinkContext& context,
                                            const net::Endpoint& endpoint, Greeting greeting,
                                            Nanos deadline);

  // Sends a command and waits for its reply; an error reply is kServer.
  Result<resp::Value> call(std::span<const std::string_view> words, Nanos deadline);
  // The two halves of it, for pipelines. A reply of any kind, pushes too, comes from receive().
  Outcome send(std::string_view encoded, Nanos deadline);
  // nullopt: nothing came until `deadline`.
  Result<std::optional<resp::Value>> receive(Nanos deadline);

  [[nodiscard]] int fd() const noexcept { return stream_->fd(); }
  [[nodiscard]] const net::Endpoint& endpoint() const noexcept { return endpoint_; }
  [[nodiscard]] const ServerInfo& info() const noexcept { return info_; }

 private:
  Link(const LinkContext& context, net::Endpoint endpoint)
      : context_(context), endpoint_(std::move(endpoint)) {}

  Result<std::vector<net::Address>> look_up(Nanos deadline);
  Outcome connect(const net::Address& address, Nanos deadline);
  Outcome greet(Greeting greeting, Nanos deadline);
  Outcome flush(Outbox& outbox, Nanos deadline);
  // kTimeout at `deadline`, kClosed when stopped.
  Outcome wait(bool writable, Nanos deadline);
  [[nodiscard]] Outcome check(Nanos deadline) const;
  [[nodiscard]] Error late(std::string what, Nanos deadline) const;
  [[nodiscard]] Error failed(const net::IoResult& io) const;

  const LinkContext context_;
  const net::Endpoint endpoint_;
  std::unique_ptr<net::Stream> stream_;
  ServerInfo info_;
  resp::ValueReader reader_;
};

// A command as bytes.
[[nodiscard]] std::string encode_words(std::span<const std::string_view> words);

}  // namespace kvferry::redis
