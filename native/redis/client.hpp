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
#include <string>
#include <unordered_map>
#include <vector>

#include "base/log_sink.hpp"
#include "net/resolver.hpp"
#include "redis/batch.hpp"
#include "redis/cluster/topology_watch.hpp"
#include "redis/completions.hpp"
#include "redis/config.hpp"
#include "redis/credentials.hpp"
#include "redis/presence/view.hpp"
#include "redis/router.hpp"
#include "redis/same_host.hpp"
#include "redis/worker.hpp"

namespace kvferry::redis {

class Client final : public BatchTaker, private Dispatcher {
 public:
  // Starts the workers, which connect at once; does not wait for them. `transport`: how to reach
  // the nodes. `credentials`: if given, asked for each connection attempt.
  // Fails with: kInvalidArgument, kSystem (no threads or descriptors left).
  static Result<std::unique_ptr<Client>> open(
      Config config, std::shared_ptr<net::Transport> transport = net::plain_transport(),
      std::shared_ptr<CredentialSource> credentials = nullptr);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Hands a batch over and names it. With `batch->quiet` the caller wait()s for it; otherwise it
  // comes back through drain(). While the server is down it finishes at once.
  // Fails with: kClosed, kForked, kCapacity, kInvalidArgument (see Batch::refusal()).
  Result<std::uint64_t> submit(const std::shared_ptr<Batch>& batch) override;

  // Withdraws a batch; it still finishes, soon: when no buffer of it can be touched any more.
  // Unknown or finished ids are ignored.
  void cancel(std::uint64_t id);

  // Readable while finished batches wait for drain().
  [[nodiscard]] int event_fd() const noexcept { return completions_.fd(); }
  std::vector<std::shared_ptr<Batch>> drain() { return completions_.drain(); }

  [[nodiscard]] Nanos deadline_for(std::size_t payload_bytes) const noexcept override;

  // Cancels everything, joins the workers. Idempotent.
  void close();

  [[nodiscard]] bool forked() const noexcept;
  [[nodiscard]] const Config& config() const noexcept { return config_; }
  [[nodiscard]] Router& router() noexcept { return router_; }
  // Null: those of the configuration.
  [[nodiscard]] CredentialSource* credentials() noexcept { return credentials_.get(); }
  [[nodiscard]] net::Transport& transport() noexcept { return *transport_; }
  [[nodiscard]] net::Resolver& resolver() noexcept { return *resolver_; }
  [[nodiscard]] LogSink& log() noexcept { return log_; }
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
  [[nodiscard]] std::size_t running() const;
  // How often its I/O threads have waited for something to do.
  [[nodiscard]] std::uint64_t wake_ups() const noexcept;
  // How often they have looked at a connection.
  [[nodiscard]] std::uint64_t visits() const noexcept;

 private:
  static constexpr std::size_t kViewsMax = 16;

  Client(Config config, std::shared_ptr<net::Transport> transport,
         std::shared_ptr<CredentialSource> credentials, EventFd event, EventFd stop, EventFd wake);
  Outcome start();

  void finished(Batch& batch) override;
  void corrupt(Batch& batch, const Command& command) override;
  void wake_workers() override;
  void wake(std::size_t worker, const AskedNode& server) override;
  void route(Work work) override { router_.route(work); }
  void redirected(AskedNode& from, Work work, std::string_view answer) override;
  void suspect() override;

  const Config config_;
  const pid_t owner_pid_;
  const std::shared_ptr<net::Transport> transport_;
  const std::shared_ptr<CredentialSource> credentials_;
  LogSink log_;
  Completions completions_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Batch>> running_;
  std::uint64_t next_id_ = 1;
  bool closed_ = false;
  EventFd stop_;  // ends the waits of the control thread
  Router router_;
  std::unique_ptr<net::Resolver> resolver_;
  std::unique_ptr<TopologyWatch> watch_;  // null: the topology does not change
  std::unique_ptr<SameHost> same_host_;   // null: nobody looks for a Unix socket
  std::array<std::unique_ptr<PresenceView>, kViewsMax> views_;
  std::atomic<std::size_t> views_count_{0};  // of views_; pairs with those who look at them
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace kvferry::redis
