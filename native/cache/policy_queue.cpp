// LRU: who was used longest ago goes first. FIFO: who came first goes first; use changes nothing,
// but an ancestor is as young as the chunk that was stored behind it last.

#include "cache/order_list.hpp"
#include "cache/policy.hpp"

namespace kvferry::cache {
namespace {

class QueuePolicy final : public Policy {
 public:
  QueuePolicy(Entries& entries, bool renewed_by_use)
      : queue_(entries.all()), renewed_by_use_(renewed_by_use) {}

  void admit(std::uint32_t slot) override { queue_.push(slot); }
  void touch(std::uint32_t slot, Use) override {
    if (renewed_by_use_) queue_.renew(slot);
  }
  void lift(std::uint32_t slot) override { queue_.renew(slot); }
  void bring_back(std::uint32_t slot) override { queue_.bring_back(slot); }
  std::uint32_t victim(std::size_t) override { return queue_.candidate(); }
  void evicted(std::uint32_t slot) override { queue_.remove(slot); }
  void removed(std::uint32_t slot) override { queue_.remove(slot); }

 private:
  OrderList queue_;
  const bool renewed_by_use_;
};

}  // namespace

std::unique_ptr<Policy> make_lru(Entries& entries) {
  return std::make_unique<QueuePolicy>(entries, true);
}

std::unique_ptr<Policy> make_fifo(Entries& entries) {
  return std::make_unique<QueuePolicy>(entries, false);
}

}  // namespace kvferry::cache
