#pragma once
// Handshake: the machine that turns a fresh stream into a connection that may carry commands.
//
// HELLO 3 with credentials and name is one round trip. A server that refuses it in whatever words
// (Redis < 6, many proxies) gets AUTH and CLIENT SETNAME instead and speaks RESP2, unless the
// credentials are wrong or it takes nobody now (ends_greeting); SELECT follows when a database is
// asked for, and READONLY for reads from a cluster's replica. A server may refuse before it is
// asked (maxclients): that is a failure too.
//
// Threads: one. Failure: kFailed with error(); secrets are never part of it.
// Source: HELLO and AUTH in the Redis command reference.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "redis/config.hpp"
#include "redis/outbox.hpp"
#include "resp/parser.hpp"

namespace kvferry::redis {

// What the server says of itself; empty where it does not.
struct ServerInfo {
  std::string server;   // "redis", "valkey"
  std::string version;  // "9.1.2"
  std::string mode;     // "standalone", "cluster", "sentinel"
  std::string role;     // "master", "replica"
  std::string zone;     // availability zone
  int protocol = 2;
};

class Handshake {
 public:
  enum class State : std::uint8_t { kRunning, kReady, kFailed };

  explicit Handshake(Greeting greeting) noexcept : greeting_(std::move(greeting)) {}

  // Writes the first command. Requires: an empty outbox.
  void begin(Outbox& outbox);
  // Takes what was received and writes what follows.
  State receive(ByteView input, Outbox& outbox);

  [[nodiscard]] const Error& error() const noexcept { return error_; }
  [[nodiscard]] const ServerInfo& info() const noexcept { return info_; }

 private:
  enum class Step : std::uint8_t { kHello, kAuth, kName, kSelect, kReadOnly, kDone };

  void write(Step step, Outbox& outbox);
  State on_reply(Outbox& outbox);
  State next(Step step, Outbox& outbox);
  State fail(Errc code, std::string context);
  void collect(const resp::Token& token);

  const Greeting greeting_;
  Step step_ = Step::kHello;
  resp::Parser parser_{64 * 1024};
  std::string pending_;             // received and not yet parsed; at most one line or payload
  std::vector<std::string> words_;  // the scalars of the present reply's first two levels
  std::string payload_;
  std::string refusal_;  // the error text of the present reply
  bool refused_ = false;
  bool password_alone_ = false;  // AUTH without the name of the user
  ServerInfo info_;
  Error error_{Errc::kProtocol, {}};
};

}  // namespace kvferry::redis
