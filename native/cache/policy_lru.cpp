// LRU: who was used longest ago goes first.

#include "cache/policy.hpp"

namespace kvferry::cache {
namespace {

class Lru final : public Policy {
 public:
  explicit Lru(Entries& entries) : queue_(entries.all()) {}

  void admit(std::uint32_t slot) override { queue_.push(slot); }
  void touch(std::uint32_t slot) override { queue_.renew(slot); }
  void lift(std::uint32_t slot) override { queue_.renew(slot); }
  std::uint32_t victim(std::size_t, int) override { return queue_.oldest(); }
  void evicted(std::uint32_t slot) override { queue_.remove(slot); }
  void removed(std::uint32_t slot) override { queue_.remove(slot); }

 private:
  OrderList queue_;
};

}  // namespace

std::unique_ptr<Policy> make_lru(Entries& entries) { return std::make_unique<Lru>(entries); }

}  // namespace kvferry::cache
