// ARC: one queue of chunks that were used once, one of those used again, and a border between them
// that moves with every chunk that comes back too late.
//
// Source: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003; T1,
// T2, B1, B2, c and p are its names. A ghost of B1 says that T1 was too small, one of B2 that T2
// was.

#include <algorithm>

#include "cache/ghosts.hpp"
#include "cache/order_list.hpp"
#include "cache/policy.hpp"

namespace kvferry::cache {
namespace {

constexpr std::uint8_t kOnce = 0;   // T1, and its ghosts B1
constexpr std::uint8_t kAgain = 1;  // T2, and B2

class Arc final : public Policy {
 public:
  explicit Arc(Entries& entries)
      : entries_(entries),
        capacity_(entries.capacity()),
        t1_(entries.all()),
        t2_(entries.all()),
        ghosts_(entries.capacity() + 1) {}

  std::uint8_t prepare(const ChunkHash& hash) override {
    arriving_once_ += prepared_once_;
    const auto b1 = static_cast<double>(ghosts_.size(kOnce));
    const auto b2 = static_cast<double>(ghosts_.size(kAgain));
    const int ghost = ghosts_.take(hash);
    from_b2_ = ghost == kAgain;
    if (ghost == kOnce) {
      t1_wanted_ = std::min(static_cast<double>(capacity_), t1_wanted_ + std::max(1.0, b2 / b1));
    } else if (ghost == kAgain) {
      t1_wanted_ = std::max(0.0, t1_wanted_ - std::max(1.0, b1 / b2));
    }
    prepared_once_ = ghost == Ghosts::kNowhere;
    return prepared_once_ ? kOnce : kAgain;
  }

  void admit(std::uint32_t slot) override {
    queue(slot).push(slot);
    prepared_once_ = false;
    if (arriving_once_ > 0 && entries_[slot].mark == kOnce) --arriving_once_;
    if (entries_[slot].mark == kAgain) {
      raise_ancestors(slot);
      return;
    }
    while (t1_.size() + ghosts_.size(kOnce) > capacity_ && ghosts_.size(kOnce) > 0) {
      ghosts_.drop_oldest(kOnce);
    }
    while (t1_.size() + t2_.size() + ghosts_.size(kOnce) + ghosts_.size(kAgain) > 2 * capacity_ &&
           ghosts_.size(kAgain) > 0) {
      ghosts_.drop_oldest(kAgain);
    }
  }

  void touch(std::uint32_t slot, Use use) override {
    if (use == Use::kCopied) {
      lift(slot);
      return;
    }
    raise(slot);
    raise_ancestors(slot);
  }
  void lift(std::uint32_t slot) override { queue(slot).renew(slot); }
  void bring_back(std::uint32_t slot) override { queue(slot).bring_back(slot); }

  std::uint32_t victim(std::size_t arriving) override {
    // Some that were prepared may never have arrived.
    arriving_once_ = std::min(arriving_once_, arriving);
    const auto t1 = static_cast<double>(t1_.size() + arriving_once_);
    const bool once = t1 > t1_wanted_ || (from_b2_ && t1 == t1_wanted_);
    const std::uint32_t slot = (once ? t1_ : t2_).candidate();
    return slot != kNone ? slot : (once ? t2_ : t1_).candidate();
  }

  void evicted(std::uint32_t slot) override {
    ghosts_.push(entries_[slot].mark, entries_[slot].hash);
    from_b2_ = false;
    removed(slot);
  }
  void removed(std::uint32_t slot) override { queue(slot).remove(slot); }
  [[nodiscard]] std::size_t size_bytes() const override { return ghosts_.size_bytes(); }

 private:
  OrderList& queue(std::uint32_t slot) { return entries_[slot].mark == kAgain ? t2_ : t1_; }

  void raise(std::uint32_t slot) {
    queue(slot).remove(slot);
    entries_[slot].mark = kAgain;
    t2_.push(slot);
  }

  // A child in T2 keeps its parents, so T1 is no place for them. Each is raised once in its stay.
  void raise_ancestors(std::uint32_t slot) {
    for (std::uint32_t above = entries_.parent_of(slot); above != kNone;
         above = entries_.parent_of(above)) {
      if (entries_[above].mark == kAgain) return;
      if (entries_[above].state == State::kReady) {
        raise(above);
      } else {
        entries_[above].mark = kAgain;  // where it goes when it is ready
      }
    }
  }

  Entries& entries_;
  const std::size_t capacity_;
  OrderList t1_;
  OrderList t2_;
  Ghosts ghosts_;
  double t1_wanted_ = 0;           // p
  std::size_t arriving_once_ = 0;  // prepared for T1, not admitted yet
  bool prepared_once_ = false;     // and the one prepared last
  bool from_b2_ = false;           // what prepare() found
};

}  // namespace

std::unique_ptr<Policy> make_arc(Entries& entries) { return std::make_unique<Arc>(entries); }

}  // namespace kvferry::cache
