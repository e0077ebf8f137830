#pragma once
// SlotTable: from 64 mixed bits of a hash to slots, by open addressing.
//
// A cell has 32 bits of the hash and a slot, so a probe that finds others' cells mostly touches
// the table alone. Deletion moves later cells back; there are no tombstones and no rehashing.
//
// Requires: at most `capacity` slots at a time. One thread at a time.

#include <cstddef>
#include <cstdint>

#include "cache/zeroed.hpp"

namespace kvferry::cache {

inline constexpr std::uint32_t kNone = UINT32_MAX;  // no slot

class SlotTable {
 public:
  explicit SlotTable(std::size_t capacity) : cells_(capacity + capacity / 2 + 16) {}

  void prefetch(std::uint64_t mixed) const noexcept { __builtin_prefetch(&cells_[home(mixed)]); }

  // The first slot of this hash for which `same(slot)` holds, or kNone.
  template <typename Same>
  [[nodiscard]] std::uint32_t find(std::uint64_t mixed, Same&& same) const {
    const auto tag = static_cast<std::uint32_t>(mixed);
    for (std::size_t at = home(tag);; at = next(at)) {
      const std::uint64_t cell = cells_[at];
      if (cell == 0) return kNone;
      if (tag_of(cell) == tag && same(slot_of(cell))) return slot_of(cell);
    }
  }

  // Requires: the slot is not there yet.
  void insert(std::uint64_t mixed, std::uint32_t slot) noexcept {
    std::size_t at = home(mixed);
    while (cells_[at] != 0) at = next(at);
    cells_[at] = mixed << 32 | (std::uint64_t{slot} + 1);
  }

  // Requires: the slot is there.
  void erase(std::uint64_t mixed, std::uint32_t slot) noexcept {
    const std::uint64_t wanted = mixed << 32 | (std::uint64_t{slot} + 1);
    std::size_t hole = home(mixed);
    while (cells_[hole] != wanted) hole = next(hole);
    for (std::size_t at = next(hole); cells_[at] != 0; at = next(at)) {
      // A cell may move into the hole when the hole is not before its home, counted from home on.
      const std::size_t origin = home(tag_of(cells_[at]));
      if (distance(origin, hole) < distance(origin, at)) {
        cells_[hole] = cells_[at];
        hole = at;
      }
    }
    cells_[hole] = 0;
  }

  [[nodiscard]] std::size_t size_bytes() const noexcept { return cells_.size_bytes(); }

 private:
  static std::uint32_t tag_of(std::uint64_t cell) noexcept {
    return static_cast<std::uint32_t>(cell >> 32);
  }
  static std::uint32_t slot_of(std::uint64_t cell) noexcept {
    return static_cast<std::uint32_t>(cell) - 1;
  }
  // The tag decides where a cell belongs, so moving one needs no look at its hash.
  [[nodiscard]] std::size_t home(std::uint64_t mixed) const noexcept {
    return (mixed & UINT32_MAX) * cells_.size() >> 32;
  }
  [[nodiscard]] std::size_t next(std::size_t at) const noexcept {
    return at + 1 < cells_.size() ? at + 1 : 0;
  }
  [[nodiscard]] std::size_t distance(std::size_t from, std::size_t to) const noexcept {
    return to >= from ? to - from : to + cells_.size() - from;
  }

  Zeroed<std::uint64_t> cells_;
};

}  // namespace kvferry::cache
