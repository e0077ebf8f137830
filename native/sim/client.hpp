#pragma once
// SimClient: redis::Client without threads: the real router, servers and connections, the loops of
// the workers (worker.hpp) and of the control thread, and the calls of a caller.
//
// It follows redis/client.cpp, redis/worker.cpp and redis/cluster/topology_watch.cpp line by line
// where the order of things matters; what changes there must change here.

#include <memory>
#include <vector>

#include "redis/router.hpp"
#include "sim/cluster.hpp"
#include "sim/ledger.hpp"
#include "sim/worker.hpp"

namespace kvferry::sim {

class SimClient final : private redis::Dispatcher {
 public:
  SimClient(const StreamContext& context, Ledger& ledger, Cluster& cluster, Network& network);
  ~SimClient();
  SimClient(const SimClient&) = delete;
  SimClient& operator=(const SimClient&) = delete;

  // False: refused, for there is too much.
  bool submit(std::shared_ptr<redis::Batch> batch, std::vector<Use> uses);
  void cancel(Request& request);
  void close();

  // Somebody of the client's threads, or who answers them, does one thing. False: all wait.
  bool step();
  [[nodiscard]] Nanos next() const noexcept;

  // Checks of a client that was closed.
  void check_closed();

  [[nodiscard]] const redis::Config& config() const noexcept { return config_; }
  [[nodiscard]] std::uint64_t next_id() const noexcept { return next_id_; }

 private:
  struct LookUp {
    Nanos due;
    SimWorker* worker;
    std::uint64_t token;
    std::uint64_t dial;
    std::uint16_t port;
  };

  void finished(redis::Batch& batch) override;
  void corrupt(redis::Batch& batch, const redis::Command& command) override;
  void wake_workers() override;
  void wake(std::size_t worker, const redis::AskedNode& server) override;
  void route(redis::Work work) override { router_.route(work); }
  void redirected(redis::AskedNode& from, redis::Work work, std::string_view answer) override;
  void suspect() override;

  bool step_names();
  bool step_provider();
  bool step_control();
  void look();
  void plant();
  [[nodiscard]] std::uint64_t settled() const;

  const StreamContext& context_;
  Ledger& ledger_;
  Cluster& cluster_;
  Network& network_;
  const redis::Config config_;
  LogSink log_;
  redis::CredentialSource credentials_;
  redis::Router router_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::vector<LookUp> look_ups_;
  Nanos provide_at_ = kNever;
  std::uint64_t next_id_ = 1;
  bool closed_ = false;

  // The control thread.
  bool signalled_ = false;  // its event fd
  bool suspected_ = false;
  bool asking_ = false;
  Nanos answer_at_ = 0;
  Nanos look_at_ = 0;
  Nanos looked_at_ = 0;
  Nanos parked_at_ = kNever;
  Nanos troubled_for_ = 0;
};

}  // namespace kvferry::sim
