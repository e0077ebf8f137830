#pragma once
// Client: batches in, completions out. The one object that callers hold.
//
// Threads: every method from any thread; drain() from one at a time. Nothing blocks but wait() and
// close(). Buffers of a batch belong to it until it is finished (see batch.hpp).
// After fork() the child's copy refuses every call (kForked) and must be leaked, not destroyed:
// its threads exist in the parent only.
// Failure: a submission fails with an Error or is finished exactly once, closed client included.

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "net/resolver.hpp"
#include "redis/client_core.hpp"
#include "redis/cluster/topology_watch.hpp"
#include "redis/credentials.hpp"
#include "redis/io_thread.hpp"
#include "redis/presence/view.hpp"
#include "redis/same_host.hpp"

namespace kvferry::redis {

class Client final : public ClientCore {
 public:
  // Starts the workers, which connect at once; does not wait for them. `transport`: how to reach
  // the nodes. `credentials`: if given, asked for each connection attempt.
  // Fails with: kInvalidArgument, kSystem (no threads or descriptors left).
  static Result<std::unique_ptr<Client>> open(
      Config config, std::shared_ptr<net::Transport> transport = net::plain_transport(),
      std::shared_ptr<CredentialSource> credentials = nullptr);
  ~Client();

  // Fails with: kForked, and as ClientCore::submit().
  Result<std::uint64_t> submit(const std::shared_ptr<Batch>& batch) override;

  // Withdraws a batch; it still finishes, soon: when no buffer of it can be touched any more.
  // Unknown or finished ids are ignored.
  void cancel(std::uint64_t id);

  // Cancels everything, joins the threads. Idempotent.
  void close();

  [[nodiscard]] bool forked() const noexcept;
  // Null: those of the configuration.
  [[nodiscard]] CredentialSource* credentials() noexcept { return credentials_.get(); }
  [[nodiscard]] net::Transport& transport() noexcept { return *transport_; }
  [[nodiscard]] net::Resolver& resolver() noexcept { return *resolver_; }
  // Null: the configuration, or the server's address, leaves nothing to look for.
  [[nodiscard]] const SameHost* same_host() const noexcept { return same_host_.get(); }
  // Keeps a view from now on, or goes on with the one of that prefix; as long as the client lives.
  // Null: there are too many, or the client is closed.
  const PresenceView* watch(PresenceOptions options);
  // The first; null: there is none.
  [[nodiscard]] const PresenceView* presence() const noexcept {
    return views_count_.load(std::memory_order_acquire) > 0 ? views_[0].get() : nullptr;
  }
  // To be called in a forked child.
  void forked_away() noexcept;
  // How often its I/O threads have waited for something to do.
  [[nodiscard]] std::uint64_t wake_ups() const noexcept;

 private:
  static constexpr std::size_t kViewsMax = 16;

  Client(Config settings, std::shared_ptr<net::Transport> transport,
         std::shared_ptr<CredentialSource> credentials, EventFd event, EventFd stop, EventFd wake);
  Outcome start();

  [[nodiscard]] Nanos now() const noexcept override { return monotonic_ns(); }
  void finishing(Batch& batch) override;
  void suspect() override;

  const pid_t owner_pid_;
  const std::shared_ptr<net::Transport> transport_;
  const std::shared_ptr<CredentialSource> credentials_;
  EventFd stop_;  // ends the waits of the control thread
  std::unique_ptr<net::Resolver> resolver_;
  std::unique_ptr<TopologyWatch> watch_;  // null: the topology does not change
  std::unique_ptr<SameHost> same_host_;   // null: nobody looks for a Unix socket
  std::mutex views_mutex_;                // of who adds to views_; guards closed_
  bool closed_ = false;
  std::array<std::unique_ptr<PresenceView>, kViewsMax> views_;
  std::atomic<std::size_t> views_count_{0};  // of views_; pairs with those who look at them
  std::vector<std::unique_ptr<IoThread>> threads_;
};

}  // namespace kvferry::redis
