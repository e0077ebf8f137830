// FIFO: who came first goes first. Use changes nothing, but an ancestor is as young as the chunk
// that was stored behind it last.

#include "cache/policy.hpp"

namespace kvferry::cache {
namespace {

class Fifo final : public Policy {
 public:
  explicit Fifo(Entries& entries) : queue_(entries.all()) {}

  void admit(std::uint32_t slot) override { queue_.push(slot); }
  void touch(std::uint32_t) override {}
  void lift(std::uint32_t slot) override { queue_.renew(slot); }
  std::uint32_t victim(std::size_t, int) override { return queue_.oldest(); }
  void evicted(std::uint32_t slot) override { queue_.remove(slot); }
  void removed(std::uint32_t slot) override { queue_.remove(slot); }

 private:
  OrderList queue_;
};

}  // namespace

std::unique_ptr<Policy> make_fifo(Entries& entries) { return std::make_unique<Fifo>(entries); }

}  // namespace kvferry::cache
