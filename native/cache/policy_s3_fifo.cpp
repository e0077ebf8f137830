// S3-FIFO: a small queue on trial, a main queue, and a memory of those that failed the trial.
//
// A chunk enters the small queue (a tenth); used twice there, it moves to the main queue, else it
// leaves and its ghost stays. One whose ghost is there enters the main queue at once. In the main
// queue a used chunk gets another round for each use, up to three.
// Source: Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023.
// Here besides: when a chunk enters the main queue, so do its ancestors that are still on trial.

#include <algorithm>

#include "cache/ghosts.hpp"
#include "cache/order_list.hpp"
#include "cache/policy.hpp"

namespace kvferry::cache {
namespace {

constexpr std::uint8_t kSmall = 0;
constexpr std::uint8_t kMain = 1;
constexpr std::uint8_t kUsesMax = 3;
constexpr std::uint8_t kUsesToPass = 2;
// The queues are turned by so many chunks for one victim at most; then whoever is there goes.
constexpr int kTurnsMax = 64;

class S3Fifo final : public Policy {
 public:
  explicit S3Fifo(Entries& entries)
      : entries_(entries),
        main_max_(entries.capacity() - entries.capacity() / 10),
        small_(entries.all()),
        main_(entries.all()),
        ghosts_(main_max_) {}

  std::uint8_t prepare(const ChunkHash& hash) override {
    return ghosts_.take(hash) == Ghosts::kNowhere ? kSmall : kMain;
  }

  void admit(std::uint32_t slot) override {
    queue(slot).push(slot);
    if (entries_[slot].mark == kMain) raise_ancestors(slot);
  }
  void touch(std::uint32_t slot, Use use) override {
    Entry& entry = entries_[slot];
    if (use == Use::kHere && entry.uses < kUsesMax) ++entry.uses;
  }
  void lift(std::uint32_t slot) override { queue(slot).renew(slot); }
  void bring_back(std::uint32_t slot) override { queue(slot).bring_back(slot); }

  std::uint32_t victim(std::size_t) override {
    int turns = 0;
    for (;;) {
      const bool from_main =
          main_.next() != kNone && (main_.size() > main_max_ || small_.next() == kNone);
      OrderList& from = from_main ? main_ : small_;
      const std::uint32_t slot = from.next();
      if (slot == kNone) return kNone;
      Entry& entry = entries_[slot];
      if (from_main && entry.uses > 0 && turns < kTurnsMax) {
        --entry.uses;
        main_.renew(slot);
        ++turns;
      } else if (!from_main && entry.uses >= kUsesToPass && turns < kTurnsMax) {
        raise(slot);
        raise_ancestors(slot);
        ++turns;
      } else if (evictable(entry)) {
        return slot;
      } else {
        from.set_aside();
      }
    }
  }

  void evicted(std::uint32_t slot) override {
    if (entries_[slot].mark == kSmall) ghosts_.push(0, entries_[slot].hash);
    removed(slot);
  }
  void removed(std::uint32_t slot) override { queue(slot).remove(slot); }
  [[nodiscard]] std::size_t size_bytes() const override { return ghosts_.size_bytes(); }

 private:
  OrderList& queue(std::uint32_t slot) { return entries_[slot].mark == kMain ? main_ : small_; }

  void raise(std::uint32_t slot) {
    small_.remove(slot);
    entries_[slot].mark = kMain;
    entries_[slot].uses = 0;
    main_.push(slot);
  }

  // Each chunk is raised once in its stay, so this costs nothing in the long run.
  void raise_ancestors(std::uint32_t slot) {
    for (std::uint32_t above = entries_.parent_of(slot); above != kNone;
         above = entries_.parent_of(above)) {
      if (entries_[above].mark == kMain) return;
      if (entries_[above].state == State::kReady) {
        raise(above);
      } else {
        entries_[above].mark = kMain;  // where it goes when it is ready
      }
    }
  }

  Entries& entries_;
  const std::size_t main_max_;
  OrderList small_;
  OrderList main_;
  Ghosts ghosts_;
};

}  // namespace

std::unique_ptr<Policy> make_s3_fifo(Entries& entries) { return std::make_unique<S3Fifo>(entries); }

}  // namespace kvferry::cache
