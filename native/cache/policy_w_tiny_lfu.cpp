// W-TinyLFU: newcomers wait in a window; who leaves it stays only if it is wanted more often than
// the one that would have to go for it.
//
// The window is an LRU queue. Behind it are two more: on probation, and protected (used again). How
// often a chunk is wanted is estimated by a sketch that also counts those that are not there.
// Source: Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", 2017.
// Here besides: no chunk goes for another of its own request, so the window grows to the length of
// requests where it is shorter than that; and who leaves it takes its ancestors along.

#include <algorithm>

#include "cache/order_list.hpp"
#include "cache/policy.hpp"
#include "cache/sketch.hpp"

namespace kvferry::cache {
namespace {

// Prompts grow by their recent end, so recency is worth more here than in the web's traces, for
// which 1 % is the usual window.
constexpr std::size_t kWindowPercent = 40;
constexpr std::size_t kProtectedPercent = 80;  // of what is behind the window

constexpr std::uint8_t kWindow = 0;
constexpr std::uint8_t kProbation = 1;
constexpr std::uint8_t kProtected = 2;

class WTinyLfu final : public Policy {
 public:
  explicit WTinyLfu(Entries& entries)
      : entries_(entries),
        window_max_(std::max<std::size_t>(1, entries.capacity() * kWindowPercent / 100)),
        protected_max_((entries.capacity() - window_max_) * kProtectedPercent / 100),
        queues_{OrderList(entries.all()), OrderList(entries.all()), OrderList(entries.all())},
        sketch_(entries.capacity()) {}

  std::uint8_t prepare(const ChunkHash& hash) override {
    sketch_.count(hash);
    return kWindow;
  }

  void admit(std::uint32_t slot) override {
    queue(slot).push(slot);
    // As long as there is room for all, nobody has to be better than anybody.
    if (window().size() > window_max_ && !full_) pass(window().oldest());
  }

  void touch(std::uint32_t slot, Use use) override {
    if (use == Use::kCopied) {
      lift(slot);
      return;
    }
    sketch_.count(entries_[slot].hash);
    if (entries_[slot].mark != kProbation) {
      lift(slot);
      return;
    }
    move(slot, kProtected);
    if (queues_[kProtected].size() > protected_max_) move(queues_[kProtected].oldest(), kProbation);
  }

  void lift(std::uint32_t slot) override { queue(slot).renew(slot); }
  void bring_back(std::uint32_t slot) override { queue(slot).bring_back(slot); }

  std::uint32_t victim(std::size_t arriving) override {
    full_ = true;
    const std::uint32_t candidate = window().candidate();
    std::uint32_t victim = queues_[kProbation].candidate();
    if (victim == kNone) victim = queues_[kProtected].candidate();
    if (victim == kNone) return candidate;
    if (candidate == kNone || window().size() + arriving + 1 <= window_max_) return victim;
    if (sketch_.estimate(entries_[candidate].hash) > sketch_.estimate(entries_[victim].hash)) {
      pass(candidate);
      return victim;
    }
    return candidate;
  }

  void evicted(std::uint32_t slot) override { removed(slot); }
  void removed(std::uint32_t slot) override { queue(slot).remove(slot); }
  [[nodiscard]] std::size_t size_bytes() const override { return sketch_.size_bytes(); }

 private:
  OrderList& queue(std::uint32_t slot) { return queues_[entries_[slot].mark]; }
  OrderList& window() { return queues_[kWindow]; }
  void move(std::uint32_t slot, std::uint8_t mark) {
    queue(slot).remove(slot);
    entries_[slot].mark = mark;
    queue(slot).push(slot);
  }

  // Out of the window, with the ancestors that are still there: a child keeps its parents.
  void pass(std::uint32_t slot) {
    move(slot, kProbation);
    for (std::uint32_t above = entries_.parent_of(slot); above != kNone;
         above = entries_.parent_of(above)) {
      if (entries_[above].mark != kWindow) return;
      if (entries_[above].state == State::kReady) {
        move(above, kProbation);
      } else {
        entries_[above].mark = kProbation;
      }
    }
  }

  Entries& entries_;
  const std::size_t window_max_;
  const std::size_t protected_max_;
  OrderList queues_[3];
  Sketch sketch_;
  bool full_ = false;  // somebody had to go already
};

}  // namespace

std::unique_ptr<Policy> make_w_tiny_lfu(Entries& entries) {
  return std::make_unique<WTinyLfu>(entries);
}

}  // namespace kvferry::cache
