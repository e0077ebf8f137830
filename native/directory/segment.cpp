#include "directory/segment.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvferry::directory {
namespace {

using cache::ChunkHash;

constexpr std::size_t kCellsMin = 8;
constexpr std::uint32_t kNoBitmap = UINT32_MAX;

// Holders as 32 bits: a bitmap's number, or one or two slots that are counted from 1.
constexpr std::uint32_t kBitmap = 1u << 31;
constexpr std::uint32_t kSlotBits = 15;
constexpr std::uint32_t kSlotMask = (1u << kSlotBits) - 1;
static_assert(kSlotsMax < kSlotMask);

std::uint32_t first_of(std::uint32_t holders) { return holders & kSlotMask; }
std::uint32_t second_of(std::uint32_t holders) { return holders >> kSlotBits; }
std::uint32_t both(std::uint32_t first, std::uint32_t second) {
  return first | second << kSlotBits;
}

std::array<std::uint32_t, 4> words_of(const ChunkHash& hash) {
  return std::bit_cast<std::array<std::uint32_t, 4>>(hash);
}

ChunkHash hash_of(const std::array<std::uint32_t, 4>& words) {
  return std::bit_cast<ChunkHash>(words);
}

void set(Mask mask, Slot slot) { mask[slot / 64] |= std::uint64_t{1} << slot % 64; }

}  // namespace

std::size_t Segment::place(const ChunkHash& hash, std::uint64_t mixed) const noexcept {
  const auto words = words_of(hash);
  std::size_t at = home(mixed);
  while (cells_[at].holders != 0 && !cells_[at].is(words)) at = next(at);
  return at;
}

const Segment::Cell* Segment::find(const ChunkHash& hash, std::uint64_t mixed) const noexcept {
  if (cells_.empty()) return nullptr;
  const Cell& cell = cells_[place(hash, mixed)];
  return cell.holders != 0 ? &cell : nullptr;
}

void Segment::resize(std::size_t cell_count) {
  const auto before = std::exchange(cells_, std::vector<Cell>(cell_count));
  for (const Cell& cell : before) {
    if (cell.holders == 0) continue;
    const ChunkHash hash = hash_of(cell.hash);
    cells_[place(hash, hash.mixed())] = cell;
  }
}

bool Segment::add(const ChunkHash& hash, std::uint64_t mixed, Slot slot) {
  if (hash == ChunkHash{}) return false;
  if (5 * (used_ + 1) > 4 * cells_.size()) {
    resize(std::max(kCellsMin, cells_.size() + cells_.size() / 2));
  }
  Cell& cell = cells_[place(hash, mixed)];
  if (cell.holders == 0) {
    cell.hash = words_of(hash);
    ++used_;
  }
  return insert_holder(cell.holders, slot);
}

bool Segment::remove(const ChunkHash& hash, std::uint64_t mixed, Slot slot) {
  if (cells_.empty()) return false;
  const std::size_t at = place(hash, mixed);
  if (cells_[at].holders == 0 || !erase_holder(cells_[at].holders, slot)) return false;
  if (cells_[at].holders == 0) {
    erase(at);
    shrink();
  }
  return true;
}

std::size_t Segment::forget(Slot slot) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < cells_.size();) {
    if (cells_[at].holders != 0 && erase_holder(cells_[at].holders, slot)) {
      ++count;
      if (cells_[at].holders == 0) {
        erase(at);  // what follows may have moved here
        continue;
      }
    }
    ++at;
  }
  shrink();
  return count;
}

// Requires: the cell's holders are gone, and it is counted in used_.
void Segment::erase(std::size_t at) {
  // What follows moves up where the hole would cut it off from its home.
  const auto distance = [&](std::size_t from, std::size_t to) {
    return to >= from ? to - from : to + cells_.size() - from;
  };
  std::size_t hole = at;
  for (std::size_t from = next(hole); cells_[from].holders != 0; from = next(from)) {
    const std::size_t origin = home(hash_of(cells_[from].hash).mixed());
    if (distance(origin, hole) >= distance(origin, from)) continue;
    cells_[hole] = cells_[from];
    hole = from;
  }
  cells_[hole] = {};
  --used_;
}

void Segment::shrink() {
  if (used_ == 0) {
    cells_ = std::vector<Cell>();
    words_ = std::vector<std::uint64_t>();
    free_ = kNoBitmap;
  } else if (cells_.size() > kCellsMin && 5 * used_ < 2 * cells_.size()) {
    resize(std::max(kCellsMin, used_ + used_ / 2 + 1));
  }
}

bool Segment::holds(const ChunkHash& hash, std::uint64_t mixed, Slot slot) const {
  const Cell* cell = find(hash, mixed);
  return cell != nullptr && has_holder(cell->holders, slot);
}

void Segment::keep(const ChunkHash& hash, std::uint64_t mixed, Mask mask) const {
  const Cell* cell = find(hash, mixed);
  const std::uint32_t holders = cell != nullptr ? cell->holders : 0;
  if ((holders & kBitmap) != 0) {
    const auto have = bitmap(holders & ~kBitmap);
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] &= i < have.size() ? have[i] : 0;
    return;
  }
  std::array<std::uint32_t, 2> kept{};
  for (const std::uint32_t one : {first_of(holders), second_of(holders)}) {
    const std::size_t word = (one - 1) / 64;
    if (one != 0 && word < mask.size() && (mask[word] >> (one - 1) % 64 & 1) != 0) {
      kept[kept[0] != 0] = one;
    }
  }
  std::ranges::fill(mask, 0);
  for (const std::uint32_t one : kept) {
    if (one != 0) set(mask, one - 1);
  }
}

bool Segment::has_holder(std::uint32_t holders, Slot slot) const noexcept {
  if ((holders & kBitmap) == 0) {
    return first_of(holders) == slot + 1 || second_of(holders) == slot + 1;
  }
  const auto have = bitmap(holders & ~kBitmap);
  return slot / 64 < have.size() && (have[slot / 64] >> slot % 64 & 1) != 0;
}

bool Segment::insert_holder(std::uint32_t& holders, Slot slot) {
  if (has_holder(holders, slot)) return false;
  if ((holders & kBitmap) == 0 && second_of(holders) == 0) {
    holders = holders == 0 ? both(slot + 1, 0) : both(first_of(holders), slot + 1);
    return true;
  }
  std::size_t width = slot / 64 + 1;
  if ((holders & kBitmap) == 0) {
    const Slot first = first_of(holders) - 1;
    const Slot second = second_of(holders) - 1;
    widen(std::max({width, std::size_t{first} / 64 + 1, std::size_t{second} / 64 + 1}));
    const std::uint32_t index = take_bitmap();
    set(bitmap(index), first);
    set(bitmap(index), second);
    holders = kBitmap | index;
  }
  widen(width);
  set(bitmap(holders & ~kBitmap), slot);
  return true;
}

bool Segment::erase_holder(std::uint32_t& holders, Slot slot) {
  if (!has_holder(holders, slot)) return false;
  if ((holders & kBitmap) == 0) {
    const std::uint32_t other =
        first_of(holders) == slot + 1 ? second_of(holders) : first_of(holders);
    holders = both(other, 0);
    return true;
  }
  const std::uint32_t index = holders & ~kBitmap;
  const Mask have = bitmap(index);
  have[slot / 64] &= ~(std::uint64_t{1} << slot % 64);
  int left = 0;
  for (const std::uint64_t word : have) left += std::popcount(word);
  if (left > 2) return true;
  holders = 0;
  for (std::size_t i = 0; i < have.size(); ++i) {
    for (std::uint64_t rest = have[i]; rest != 0; rest &= rest - 1) {
      const auto one = static_cast<std::uint32_t>(64 * i + 1) +
                       static_cast<std::uint32_t>(std::countr_zero(rest));
      holders = holders == 0 ? both(one, 0) : both(first_of(holders), one);
    }
  }
  free_bitmap(index);
  return true;
}

std::uint32_t Segment::take_bitmap() {
  if (free_ != kNoBitmap) {
    const std::uint32_t index = free_;
    free_ = static_cast<std::uint32_t>(bitmap(index)[0]);
    std::ranges::fill(bitmap(index), 0);
    return index;
  }
  const auto index = static_cast<std::uint32_t>(words_.size() / width_);
  words_.resize(words_.size() + width_);
  return index;
}

void Segment::free_bitmap(std::uint32_t index) noexcept {
  bitmap(index)[0] = free_;
  free_ = index;
}

void Segment::widen(std::size_t width) {
  if (width <= width_) return;
  const std::size_t count = words_.size() / width_;
  std::vector<std::uint64_t> wider(count * width);
  for (std::size_t i = 0; i < count; ++i) {
    std::ranges::copy(bitmap(static_cast<std::uint32_t>(i)),
                      wider.begin() + static_cast<std::ptrdiff_t>(i * width));
  }
  words_ = std::move(wider);
  width_ = width;
}

std::size_t Segment::memory_bytes() const noexcept {
  return sizeof *this + cells_.capacity() * sizeof(Cell) +
         words_.capacity() * sizeof(std::uint64_t);
}

}  // namespace kvferry::directory
