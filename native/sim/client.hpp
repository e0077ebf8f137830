#pragma once
// SimClient: drives redis::ClientCore as redis::Client does, without threads: its workers, the
// refresh of its map, who looks names up, and who provides credentials.

#include <memory>
#include <optional>
#include <vector>

#include "redis/client_core.hpp"
#include "redis/cluster/map_refresh.hpp"
#include "sim/cluster.hpp"
#include "sim/io_thread.hpp"
#include "sim/ledger.hpp"

namespace kvferry::sim {

class SimClient final : public redis::ClientCore {
 public:
  SimClient(const StreamContext& context, Ledger& ledger, Cluster& cluster, Network& network,
            EventFd event);
  ~SimClient();

  Result<std::uint64_t> submit(const std::shared_ptr<redis::Batch>& batch) override;
  // `uses`: one for each item. False: refused, for there is too much.
  bool submit(const std::shared_ptr<redis::Batch>& batch, std::vector<Use> uses);
  void cancel(Request& request);
  void close();

  // Somebody of the client's threads, or who answers them, does one thing. False: all wait.
  bool step();
  [[nodiscard]] Nanos next() const noexcept;

  // Checks of a client that was closed.
  void check_closed();

 private:
  struct LookUp {
    Nanos due;
    std::uint16_t port;
    net::Resolver::Callback callback;
  };

  [[nodiscard]] Nanos now() const noexcept override { return context_.journal.now(); }
  void redirected(redis::AskedNode& from, redis::Work work, std::string_view answer) override;
  void suspect() override { signalled_ = true; }

  bool step_names();
  bool step_provider();
  bool step_map();
  [[nodiscard]] Result<redis::SlotMap> ask();
  void plant();
  void check_distance(redis::Server& server);
  void note_servers();
  [[nodiscard]] std::uint64_t settled() const;

  const StreamContext& context_;
  Ledger& ledger_;
  Cluster& cluster_;
  Network& network_;
  redis::CredentialSource credentials_;
  const std::shared_ptr<redis::BatchListener> listener_;  // shared with every batch
  std::vector<std::unique_ptr<SimThread>> threads_;
  std::vector<LookUp> look_ups_;
  bool asked_ = false;  // for credentials, since they were provided last
  Nanos provide_at_ = kNever;
  bool closed_ = false;
  std::uint64_t generation_ = UINT64_MAX;
  std::vector<std::shared_ptr<redis::Server>> servers_;  // every node that there ever was

  // The control thread.
  std::optional<redis::MapRefresh> refresh_;  // none: the topology does not change
  bool signalled_ = false;                    // its event fd
  std::optional<redis::MapRefresh::Question> question_;
  Nanos answer_at_ = 0;
  std::optional<redis::SlotMap> map_;  // planted: the only one that is ever seen
};

}  // namespace kvferry::sim
