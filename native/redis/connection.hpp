#pragma once
// Connection: one socket to one server, from dialling to the last reply. It moves bytes; what is to
// be done is decided by its machines: Dial and Handshake until it is up, then Pacing (what may be
// sent now), Replies (whose is what comes), and Liveness (what is overdue).
//
// States: waiting -> authorizing -> resolving -> connecting -> greeting -> up -> waiting ...
// A connection that ends gives its commands back to the queue, which sends them on another one
// (every verb is idempotent); after attempts_max tries they settle as UNAVAILABLE. With commands in
// flight it is reset, not closed: what is still on its way must not arrive behind newer values.
// What the server redirects goes back as well, to the node that the server names.
//
// Threads: owned by one worker; only the worker's thread calls it.

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "net/poller.hpp"
#include "net/stream.hpp"
#include "net/transport.hpp"
#include "redis/credentials.hpp"
#include "redis/dial.hpp"
#include "redis/handshake.hpp"
#include "redis/liveness.hpp"
#include "redis/outbox.hpp"
#include "redis/pacing.hpp"
#include "redis/replies.hpp"
#include "redis/server.hpp"

namespace kvferry::redis {

class Connection final : private ReplySink, private PacingSink {
 public:
  using Role = Pacing::Role;
  // What a connection needs of its surroundings. Answers to the two requests arrive later, through
  // on_resolved() and on_credentials().
  struct Environment {
    net::Watcher& watcher;
    net::Transport& transport;
    std::function<void(const net::Endpoint&, std::uint64_t token, std::uint64_t dial)> resolve;
    std::function<void(std::uint64_t token, std::uint64_t dial)> ask_credentials;
    const CredentialSource* credentials = nullptr;  // null: those of the configuration
    std::size_t worker = 0;                         // its number
  };

  // `first`: of its node; it probes while the others wait for the breaker to close.
  Connection(Server& server, const Environment& environment, std::uint64_t token, Role role,
             bool first, std::uint64_t seed);

  // Fires timers that are due. Returns when it wants to be called next.
  Nanos tick(Nanos now);
  // The socket is ready.
  void on_ready(const net::Ready& ready, Nanos now);
  void on_resolved(std::uint64_t dial, Result<std::vector<net::Address>> addresses, Nanos now);
  void on_credentials(std::uint64_t dial, const Result<Credentials>& credentials, Nanos now);
  // Takes work while there is room for it, and sends.
  void pump(Nanos now);
  // Releases commands that were cancelled or are past their deadline.
  void release(Nanos now);
  // One of the calls above found no memory: the connection ends as if it had broken.
  void on_no_memory(Nanos now);
  // Ends the connection for good. What is in flight settles as CANCELLED, or goes elsewhere if the
  // node is retired.
  void shut_down(Nanos now);
  [[nodiscard]] const Server& server() const noexcept { return server_; }

 private:
  enum class State : std::uint8_t {
    kWaiting,
    kAuthorizing,
    kResolving,
    kConnecting,
    kGreeting,
    kUp,
    kShut
  };
  enum class End : std::uint8_t { kBroken, kSilent, kWithdrawn };

  void settled(Work work, Status status, Reason why) override;
  void redirected(Work work, std::string_view answer) override;
  bool send(Nanos now) override;
  // Nothing more may be sent from the buffers of what is in flight; the connection will end.
  void stop_sending();

  void dial(Nanos now);
  // Dials anew if it should be elsewhere: at the server's Unix socket, or where the name leads now.
  // Until then it takes no new work, and waits for what is in flight.
  void move_over(Nanos now);
  void stay();
  void leave_unix() noexcept;
  void look_up(Nanos now);
  void connect_next(Nanos now);
  void dial_failed(Error error, Nanos now);
  void on_connecting(Nanos now);
  void refused(Nanos now);
  // What a dial that took too long was waiting for.
  [[nodiscard]] const char* awaited() const noexcept;
  void greet(Nanos now);
  void on_greeting(Nanos now);
  void become_up(Nanos now);
  void on_replies(Nanos now);
  // The connection is of no use any more: gives its commands back and dials again later.
  void end(End how, Reason why, Nanos now);
  // Why the stream ended: kCertificate where one side refused the other, else as `usual`.
  [[nodiscard]] Error failure(const net::IoResult& io, Errc usual) const;
  void lose(End how, Reason reason, Nanos now);
  // Commands that were sent and not answered go to other connections, or are given up.
  void give_back(End how, Reason reason, Nanos now);
  void drop_stream();

  Nanos tick_dialling(Nanos now);
  Nanos tick_up(Nanos now);
  [[nodiscard]] bool still_sends(Nanos now);
  void ping(Nanos now);
  void authenticate_again(Nanos now);
  void flush(Nanos now);
  void watch(bool readable, bool writable);

  Server& server_;
  const Config& config_;
  const Environment& environment_;
  const std::uint64_t token_;
  const Role role_;
  const bool first_;

  State state_ = State::kWaiting;
  Dial dial_;
  Nanos dialled_at_ = 0;
  bool on_unix_ = false;  // up over a Unix socket, and counted so
  std::unique_ptr<net::Stream> stream_;
  bool watching_writable_ = false;

  Credentials credentials_;
  std::unique_ptr<Handshake> handshake_;
  Outbox outbox_;
  Replies replies_;
  Liveness liveness_;
  Pacing pacing_;
  Nanos now_ = 0;                // of the call that is running, for settled()
  bool more_ = false;            // on_replies() was cut short
  bool answered_early_ = false;  // a SET was answered before its payload was sent
};

}  // namespace kvferry::redis
