#pragma once
// SameHost: whether a server that was named by a loopback address also listens on a Unix socket
// which this process may use: half as fast again, for nothing.
//
// It asks the server itself (CLIENT INFO, INFO server, CONFIG GET unixsocket), over a connection of
// its own. The socket is good if the process of that id listens there, as our user, and says the
// same run_id; if the server sees our questions come from our own socket, so that no proxy or
// tunnel was given as its address; and if all of that can be learnt. A server that may not be asked
// is left at TCP without a word. Other users and containers are never crossed: their processes have
// other user ids, or other process ids than they say.
//
// kAuto: asks when connections are up, and again later or when some were lost; meanwhile data goes
// over TCP. kUnix: asks for every dial, and a dial without a good socket fails with the reason.
//
// Threads: its own, "kvferry-host"; every method from any. Lifetime: config, server, log and what
// the link context refers to outlive it.

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/event_fd.hpp"
#include "base/log_sink.hpp"
#include "base/thread.hpp"
#include "net/resolver.hpp"
#include "redis/link.hpp"
#include "redis/server.hpp"

namespace kvferry::redis {

// Whether a client with this configuration has one.
[[nodiscard]] bool asks_for_socket(const Config& config);

// What a server says of itself.
struct LocalServer {
  std::string run_id;
  pid_t process = 0;
  std::string unix_path;  // absolute
};

// The replies to INFO server and CONFIG GET unixsocket. Fails with: kServer, and what is missing.
Result<LocalServer> parse_local_server(const resp::Value& info, const resp::Value& config);

// Where a server sees the connection that asked it for CLIENT INFO: "127.0.0.1:40000".
[[nodiscard]] std::string_view seen_address(const resp::Value& client);

class SameHost {
 public:
  // Requires: asks_for_socket(config). Fails with: kSystem.
  static Result<std::unique_ptr<SameHost>> open(const Config& config,
                                                std::shared_ptr<Server> server,
                                                const LinkContext& links, LogSink& log);

  // Throws std::system_error without resources.
  void start();
  // Returns when the thread has ended. The links' stop signal must be raised before. Idempotent.
  void stop();

  // A connection was lost, or the socket let nobody in.
  void suspect();
  // kUnix: the address to dial. The callback runs on the thread; never after stop().
  void request(net::Resolver::Callback callback);

  // For people: "unix:/run/valkey.sock", or "TCP: " and why.
  [[nodiscard]] std::string text() const;

 private:
  SameHost(const Config& config, std::shared_ptr<Server> server, const LinkContext& links,
           LogSink& log, EventFd wake);
  void run() noexcept;
  void loop();
  void answer_requests();
  // One question. `lasting`: a no will stay one until the server starts anew.
  Result<net::Address> ask(bool& lasting);
  Result<LocalServer> ask_server(Nanos deadline, bool& lasting);
  Outcome check_socket(const LocalServer& said, const net::Endpoint& endpoint, Nanos deadline);
  void note(std::string text, LogLevel level);
  // False: stop.
  bool wait(Nanos until);
  [[nodiscard]] LinkContext links() const;
  [[nodiscard]] Greeting greeting() const;

  const Config& config_;
  const std::shared_ptr<Server> server_;  // with the router
  const LinkContext links_;
  LogSink& log_;
  const EventFd wake_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<net::Resolver::Callback> requests_;
  bool suspected_ = false;
  std::string text_;
  Thread thread_;
};

}  // namespace kvferry::redis
