#pragma once
// Segment: a part of the directory: for each chunk hash the slots that hold it.
//
// Open addressing with linear probing; a cell has the whole hash and its holders in 20 bytes. Up to
// two holders are in the cell itself; of more there is a bitmap beside the cells. So a chunk takes
// 25 to 38 bytes with the room to grow, and 8 bytes more for each 64 slots if three hold it.
//
// The hash of zeros marks a free cell: it names no chunk, and nobody holds it.
// Requires: mixed == hash.mixed(), slot < kSlotsMax. Threads: one.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/hashes.hpp"

namespace kvferry::directory {

using Slot = std::uint32_t;
inline constexpr Slot kSlotsMax = 4096;
// A set of slots, one bit each; only the words that are in use.
using Mask = std::span<std::uint64_t>;

class Segment {
 public:
  // Whether the slot did not hold it before.
  bool add(const cache::ChunkHash& hash, std::uint64_t mixed, Slot slot);
  // Whether the slot held it.
  bool remove(const cache::ChunkHash& hash, std::uint64_t mixed, Slot slot);
  // Removes all that a slot holds; how many there were.
  std::size_t forget(Slot slot);

  [[nodiscard]] bool holds(const cache::ChunkHash& hash, std::uint64_t mixed, Slot slot) const;
  // Takes out of the mask whoever does not hold it.
  void keep(const cache::ChunkHash& hash, std::uint64_t mixed, Mask mask) const;
  // Fetches the cell of the hash, for a call that comes soon.
  void prefetch(std::uint64_t mixed) const noexcept {
    if (!cells_.empty()) __builtin_prefetch(&cells_[home(mixed)]);
  }

  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  struct Cell {
    std::array<std::uint32_t, 4> hash{};
    std::uint32_t holders = 0;

    [[nodiscard]] bool is(const std::array<std::uint32_t, 4>& other) const noexcept {
      return hash == other;
    }
  };
  static_assert(sizeof(Cell) == 20);

  [[nodiscard]] std::size_t home(std::uint64_t mixed) const noexcept {
    return (mixed & UINT32_MAX) * cells_.size() >> 32;
  }
  [[nodiscard]] std::size_t next(std::size_t at) const noexcept {
    return at + 1 < cells_.size() ? at + 1 : 0;
  }
  // The cell of the hash, or the free one where it would go. Requires: there are cells.
  [[nodiscard]] std::size_t place(const cache::ChunkHash& hash, std::uint64_t mixed) const noexcept;
  [[nodiscard]] const Cell* find(const cache::ChunkHash& hash, std::uint64_t mixed) const noexcept;
  void resize(std::size_t cell_count);
  void erase(std::size_t at);
  void shrink();

  // Holders of a cell: 0 for none.
  bool insert_holder(std::uint32_t& holders, Slot slot);
  bool erase_holder(std::uint32_t& holders, Slot slot);
  [[nodiscard]] bool has_holder(std::uint32_t holders, Slot slot) const noexcept;

  // Bitmaps of `width_` words each; the first word of a free one has the number of the next.
  [[nodiscard]] Mask bitmap(std::uint32_t index) noexcept {
    return Mask(words_).subspan(index * width_, width_);
  }
  [[nodiscard]] std::span<const std::uint64_t> bitmap(std::uint32_t index) const noexcept {
    return std::span(words_).subspan(index * width_, width_);
  }
  std::uint32_t take_bitmap();
  void free_bitmap(std::uint32_t index) noexcept;
  void widen(std::size_t width);

  std::vector<Cell> cells_;
  std::size_t used_ = 0;
  std::vector<std::uint64_t> words_;
  std::size_t width_ = 4;
  std::uint32_t free_ = UINT32_MAX;
};

}  // namespace kvferry::directory
