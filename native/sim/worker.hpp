#pragma once
// SimWorker: the loop of redis::Worker without its thread. It does the same things in the same
// order; the scheduler may let others run between any two of them.

#include <memory>
#include <vector>

#include "redis/connection.hpp"
#include "redis/router.hpp"
#include "sim/network.hpp"

namespace kvferry::sim {

class SimWorker final : public net::Watcher {
 public:
  struct Surroundings {
    const StreamContext& context;
    const redis::Config& config;
    redis::Router& router;
    Network& network;
    redis::CredentialSource* credentials;
    // Answered with on_resolved() of this worker.
    std::function<void(SimWorker& worker, std::uint64_t token, std::uint64_t dial,
                       std::uint16_t port)>
        look_up;
    std::function<void()> ask_provider;
  };

  SimWorker(const Surroundings& shared, std::size_t index);

  [[nodiscard]] bool runnable() const noexcept;
  // One piece of work of the loop. Requires: runnable().
  void step();
  // When it wakes up by itself.
  [[nodiscard]] Nanos next() const noexcept { return phase_ == Phase::kWait ? next_ : 0; }

  void wake() noexcept { told_all_ = wake_pending_ = true; }
  void wake(const redis::Server& server) {
    told_.push_back(&server);
    wake_pending_ = true;
  }
  void release_withdrawn() noexcept { release_pending_ = wake_pending_ = true; }
  void on_resolved(std::uint64_t token, std::uint64_t dial,
                   Result<std::vector<net::Address>> addresses);
  void shut_down();

  // Every node that it ever had connections to.
  [[nodiscard]] const std::vector<std::shared_ptr<redis::Server>>& servers() const noexcept {
    return servers_;
  }
  // Connections that are up. Requires: nothing is under way.
  [[nodiscard]] bool has_ready() const noexcept;

  Outcome watch(int fd, std::uint64_t token, bool readable, bool writable) noexcept override;
  void forget(int fd) noexcept override;

 private:
  enum class Phase : std::uint8_t { kWait, kReady, kMessages, kTick, kPump };
  struct Resolved {
    std::uint64_t token;
    std::uint64_t dial;
    Result<std::vector<net::Address>> addresses;
  };
  struct Authorized {
    std::uint64_t token;
    std::uint64_t dial;
    Result<redis::Credentials> credentials;
  };
  struct Owned {
    std::uint64_t token;
    std::shared_ptr<redis::Server> server;
    std::unique_ptr<redis::Connection> connection;
    Nanos due = 0;
    bool touched = false;
  };

  void run_phase();
  void end_of_round();
  void collect_ready();
  void take_messages();
  void follow_router();
  void add_node(const redis::Router::Node& node);
  // Null: it is gone. What is found is looked at in this round.
  [[nodiscard]] redis::Connection* touch(std::uint64_t token) noexcept;
  [[nodiscard]] Nanos now() const noexcept { return shared_.context.journal.now(); }

  const Surroundings shared_;
  const std::size_t index_;
  redis::Connection::Environment environment_;
  Phase phase_ = Phase::kMessages;
  std::size_t at_ = 0;  // within the phase
  Nanos next_ = kNever;
  Nanos sweep_at_ = 0;
  int idle_rounds_ = 0;  // in a row, without a wait between them
  bool wake_pending_ = false;
  bool release_pending_ = false;
  bool told_all_ = false;
  std::vector<const redis::Server*> told_;
  bool all_touched_ = true;
  std::vector<net::Ready> ready_;
  std::vector<Resolved> resolved_;
  std::vector<Authorized> authorized_;
  std::uint64_t generation_ = UINT64_MAX;
  std::uint64_t tokens_ = 0;
  std::vector<Owned> connections_;
  std::vector<std::shared_ptr<redis::Server>> servers_;
};

}  // namespace kvferry::sim
