#include "redis/presence/set.hpp"

#include <utility>

namespace kvferry::redis {
namespace {

constexpr std::size_t kSegments = 256;
constexpr std::size_t kCellsMin = 8;

}  // namespace

std::size_t PresenceSet::Segment::place(std::uint64_t hash) const noexcept {
  const std::size_t mask = cells.size() - 1;
  std::size_t at = home(hash);
  while (cells[at] != 0 && cells[at] != hash) at = (at + 1) & mask;
  return at;
}

void PresenceSet::Segment::resize(std::size_t cell_count) {
  const auto before = std::exchange(cells, std::vector<std::uint64_t>(cell_count));
  for (const std::uint64_t hash : before) {
    if (hash != 0) cells[place(hash)] = hash;
  }
}

bool PresenceSet::insert(std::uint64_t hash) {
  if (segments_.empty()) segments_.resize(kSegments);
  Segment& segment = segments_[segment_of(hash)];
  if (segment.cells.empty()) segment.resize(kCellsMin);
  std::size_t at = segment.place(hash);
  if (segment.cells[at] == hash) return false;
  if (4 * (segment.used + 1) > 3 * segment.cells.size()) {
    segment.resize(2 * segment.cells.size());
    at = segment.place(hash);
  }
  segment.cells[at] = hash;
  ++segment.used;
  ++size_;
  return true;
}

bool PresenceSet::erase(std::uint64_t hash) {
  if (!contains(hash)) return false;
  Segment& segment = segments_[segment_of(hash)];
  const std::size_t mask = segment.cells.size() - 1;
  std::size_t hole = segment.place(hash);
  // What follows moves up where the hole would cut it off from its home.
  for (std::size_t at = (hole + 1) & mask; segment.cells[at] != 0; at = (at + 1) & mask) {
    const std::size_t home = segment.home(segment.cells[at]);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    segment.cells[hole] = segment.cells[at];
    hole = at;
  }
  segment.cells[hole] = 0;
  --segment.used;
  --size_;
  if (segment.cells.size() > kCellsMin && 8 * segment.used < segment.cells.size()) {
    segment.resize(segment.cells.size() / 2);
  }
  return true;
}

bool PresenceSet::contains(std::uint64_t hash) const noexcept {
  if (segments_.empty()) return false;
  const Segment& segment = segments_[segment_of(hash)];
  return !segment.cells.empty() && segment.cells[segment.place(hash)] == hash;
}

void PresenceSet::clear() noexcept {
  segments_ = std::vector<Segment>();
  size_ = 0;
}

std::size_t PresenceSet::memory_bytes() const noexcept {
  std::size_t bytes = segments_.capacity() * sizeof(Segment);
  for (const Segment& segment : segments_)
    bytes += segment.cells.capacity() * sizeof segment.cells[0];
  return bytes;
}

}  // namespace kvferry::redis
