// S3-FIFO: a small queue on trial, a main queue, and a memory of those that failed the trial.
//
// A chunk enters the small queue (a tenth); used twice there, it moves to the main queue, else it
// leaves and its ghost stays. One whose ghost is there enters the main queue at once. In the main
// queue a used chunk gets another round for each use, up to three.
// Source: Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023.
// Here besides: when a chunk enters the main queue, so do its ancestors that are still on trial.

#include <algorithm>

#include "cache/ghosts.hpp"
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
  void touch(std::uint32_t slot) override {
    Entry& entry = entries_[slot];
    if (entry.uses < kUsesMax) ++entry.uses;
  }
  void lift(std::uint32_t slot) override { queue(slot).renew(slot); }

  std::uint32_t victim(std::size_t, int passed) override {
    for (int turn = 0; turn < kTurnsMax; ++turn) {
      const std::uint32_t slot = oldest(passed);
      if (slot == kNone) return kNone;
      Entry& entry = entries_[slot];
      if (entry.mark == kMain && entry.uses > 0) {
        --entry.uses;
        main_.renew(slot);
      } else if (entry.mark == kSmall && entry.uses >= kUsesToPass) {
        raise(slot);
        raise_ancestors(slot);
      } else {
        return slot;
      }
    }
    return oldest(passed);
  }

  void evicted(std::uint32_t slot) override {
    if (entries_[slot].mark == kSmall) ghosts_.push(0, entries_[slot].hash);
    removed(slot);
  }
  void removed(std::uint32_t slot) override { queue(slot).remove(slot); }
  [[nodiscard]] std::size_t size_bytes() const override { return ghosts_.size_bytes(); }

 private:
  OrderList& queue(std::uint32_t slot) { return entries_[slot].mark == kMain ? main_ : small_; }

  [[nodiscard]] std::uint32_t oldest(int passed) const {
    bool from_main = main_.size() > main_max_;
    if (is_other_queues_turn(passed)) from_main = !from_main;
    if (small_.size() == 0) return main_.oldest();
    return from_main && main_.size() > 0 ? main_.oldest() : small_.oldest();
  }

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
