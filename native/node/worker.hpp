#pragma once
// NodeWorker: one I/O thread of a node: its connections, from the first byte to the last.
//
// Threads: run() is the thread; mailbox(), connections() and stop() are for others.
// Failure: what goes wrong with a connection ends that connection.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "net/poller.hpp"
#include "node/context.hpp"
#include "node/mailbox.hpp"
#include "node/pace.hpp"
#include "node/session.hpp"

namespace kvferry::node {

[[nodiscard]] UnixMs unix_ms() noexcept;

class NodeWorker {
 public:
  static Result<std::unique_ptr<NodeWorker>> open(Context& context, PaceLimits pace);
  ~NodeWorker();
  NodeWorker(const NodeWorker&) = delete;
  NodeWorker& operator=(const NodeWorker&) = delete;

  void run();
  // Ends run() soon; the connections end with the worker.
  void stop() noexcept;

  [[nodiscard]] Mailbox& mailbox() noexcept { return mailbox_; }
  [[nodiscard]] std::size_t connections() const noexcept {
    return count_.load(std::memory_order_relaxed);
  }
  // One more is on its way to the mailbox.
  void expect_one() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }

 private:
  struct Connection {
    std::unique_ptr<net::Stream> stream;
    Session session;
    bool connected = false;  // the handshake is over
    bool readable = true;    // perhaps; until a receive() said otherwise
    bool watches_reading = false, watches_writing = false;
    bool waits = false;  // in later_
    Pace in{}, out{};
    Nanos since = 0;              // of its begin
    std::size_t moved_bytes = 0;  // since held.since
    Clients::Held held{};         // as Clients know it
  };
  using Connections = std::unordered_map<std::uint64_t, std::unique_ptr<Connection>>;

  NodeWorker(Context& context, PaceLimits pace, net::Poller poller, EventFd event);

  void read_mail();
  void add(NewConnection connection);
  void serve(std::uint64_t id);
  // False: the connection is over.
  bool serve(std::uint64_t id, Connection& connection);
  bool greet(Connection& connection);
  bool receive(Connection& connection, bool& moved);
  bool flush(Connection& connection, bool& moved);
  bool watch(std::uint64_t id, Connection& connection);
  void tell_held(std::uint64_t id, Connection& connection);
  void end(std::uint64_t id);
  void judge_paces(Nanos now);

  Context& context_;
  const PaceLimits pace_;
  net::Poller poller_;
  Mailbox mailbox_;
  Connections connections_;
  std::vector<std::uint64_t> again_;  // had more to move than their turn allowed
  std::deque<std::uint64_t> later_;   // had more commands than that
  std::vector<std::byte> scratch_;
  Nanos judged_at_ = 0;
  std::atomic<std::size_t> count_{0};  // relaxed: for dealing out
  std::atomic<bool> stopping_{false};  // relaxed: the wake-up makes it seen
};

}  // namespace kvferry::node
