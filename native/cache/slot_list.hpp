#pragma once
// SlotList: a doubly linked list through the elements of an array, by index; nothing is allocated.
//
// The young end is where things enter; the old end is where they leave.
// Requires: an element is in at most one list of those that use the same links.

#include <cstddef>
#include <cstdint>

#include "cache/slot_table.hpp"
#include "cache/zeroed.hpp"

namespace kvferry::cache {

struct Links {
  std::uint32_t younger = kNone;
  std::uint32_t older = kNone;
};

template <typename Node, Links Node::* kLinks>
class SlotList {
 public:
  explicit SlotList(Zeroed<Node>& nodes) : nodes_(&nodes) {}

  [[nodiscard]] std::uint32_t youngest() const noexcept { return youngest_; }
  [[nodiscard]] std::uint32_t oldest() const noexcept { return oldest_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  void push(std::uint32_t slot) noexcept {
    links(slot) = {kNone, youngest_};
    (youngest_ == kNone ? oldest_ : links(youngest_).younger) = slot;
    youngest_ = slot;
    ++size_;
  }

  // As the next older one of `younger`, or as the youngest for kNone.
  void insert(std::uint32_t slot, std::uint32_t younger) noexcept {
    if (younger == kNone) {
      push(slot);
      return;
    }
    const std::uint32_t older = links(younger).older;
    links(slot) = {younger, older};
    links(younger).older = slot;
    (older == kNone ? oldest_ : links(older).younger) = slot;
    ++size_;
  }

  void remove(std::uint32_t slot) noexcept {
    const Links at = links(slot);
    (at.younger == kNone ? youngest_ : links(at.younger).older) = at.older;
    (at.older == kNone ? oldest_ : links(at.older).younger) = at.younger;
    --size_;
  }

  // To the young end.
  void renew(std::uint32_t slot) noexcept {
    if (slot == youngest_) return;
    remove(slot);
    push(slot);
  }

 private:
  Links& links(std::uint32_t slot) noexcept { return (*nodes_)[slot].*kLinks; }

  Zeroed<Node>* nodes_;
  std::uint32_t youngest_ = kNone;
  std::uint32_t oldest_ = kNone;
  std::size_t size_ = 0;
};

}  // namespace kvferry::cache
