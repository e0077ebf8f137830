#pragma once
// Caller: who uses the client: submits batches of all verbs, cancels some, and after the storm asks
// until everything works again.

#include <array>
#include <memory>
#include <vector>

#include "sim/client.hpp"

namespace kvferry::sim {

class Caller {
 public:
  Caller(const StreamContext& context, Ledger& ledger, SimClient& client)
      : context_(context), ledger_(ledger), client_(client), batches_left_(context.plan.batches) {}

  // Submits or cancels what is due. False: nothing is.
  bool step();
  [[nodiscard]] Nanos next() const noexcept;
  // The storm's batches are submitted and finished.
  [[nodiscard]] bool done() const noexcept;

  // One batch without haste. Empty: there is no memory for it.
  using Keys = std::vector<std::size_t>;
  std::shared_ptr<redis::Batch> ask(Verb verb, const Keys& keys, bool framed);

 private:
  std::shared_ptr<redis::Batch> submit(const redis::Batch::Options& options, const Keys& keys);
  [[nodiscard]] std::size_t size_of(std::size_t key) noexcept;

  const StreamContext& context_;
  Ledger& ledger_;
  SimClient& client_;
  std::size_t batches_left_;
  Nanos submit_at_ = 0;
  std::uint16_t versions_ = 0;
};

}  // namespace kvferry::sim
