#pragma once
// OrderList: the queue of a policy, from the oldest chunk to the youngest, with a place in it up to
// which nobody may go.
//
// candidate() sets those aside that cannot go now: it leaves them where they are and goes on behind
// them, so that each is looked at once however often it is in the way. Who may go again is brought
// back: as the next candidate when what it waited for was older than all others (its last child),
// or by push() or renew() as the youngest. So a chunk goes when it and all that follow it were used
// longest ago, in whatever order they were used, and that costs O(1) for each call, amortised.
//
// Threads: one at a time. Lifetime: `entries` outlives the list.

#include <cstddef>
#include <cstdint>

#include "cache/entries.hpp"
#include "cache/slot_list.hpp"
#include "cache/zeroed.hpp"

namespace kvferry::cache {

class OrderList {
 public:
  explicit OrderList(Zeroed<Entry>& entries) : entries_(&entries), list_(entries) {}

  // Those set aside count.
  [[nodiscard]] std::size_t size() const noexcept { return list_.size(); }
  [[nodiscard]] std::uint32_t oldest() const noexcept { return list_.oldest(); }

  void push(std::uint32_t slot) noexcept {
    list_.push(slot);
    unflag(slot);
    if (next_ == kNone) next_ = slot;
  }

  void remove(std::uint32_t slot) noexcept {
    if (slot == next_) next_ = (*entries_)[slot].order.younger;
    list_.remove(slot);
  }

  // To the young end.
  void renew(std::uint32_t slot) noexcept {
    remove(slot);
    push(slot);
  }

  // The oldest that may go, or kNone.
  std::uint32_t candidate() noexcept {
    while (next_ != kNone && !evictable((*entries_)[next_])) set_aside();
    return next_;
  }

  // The parts of candidate(), for a policy that looks at all of them. Requires: next() is a chunk.
  [[nodiscard]] std::uint32_t next() const noexcept { return next_; }
  void set_aside() noexcept {
    (*entries_)[next_].flags |= kAside;
    next_ = (*entries_)[next_].order.younger;
  }

  // Requires: it was set aside.
  void bring_back(std::uint32_t slot) noexcept {
    list_.remove(slot);
    list_.insert(slot, next_);
    unflag(slot);
    next_ = slot;
  }

 private:
  void unflag(std::uint32_t slot) noexcept {
    (*entries_)[slot].flags &= static_cast<std::uint8_t>(~kAside);
  }

  Zeroed<Entry>* entries_;
  SlotList<Entry, &Entry::order> list_;
  std::uint32_t next_ = kNone;  // those that are older are set aside
};

}  // namespace kvferry::cache
