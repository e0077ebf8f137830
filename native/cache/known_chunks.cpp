#include "cache/known_chunks.hpp"

namespace kvferry::cache {

KnownChunks::KnownChunks(std::uint32_t capacity)
    : nodes_(capacity), table_(capacity), by_age_(nodes_) {}

void KnownChunks::add(const ChunkHash& hash) {
  if (contains(hash)) return;
  if (by_age_.size() == nodes_.size()) remove(by_age_.oldest());
  std::uint32_t slot = unused_;
  if (free_.empty()) {
    ++unused_;
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  nodes_[slot].hash = hash;
  table_.insert(hash.mixed(), slot);
  by_age_.push(slot);
}

void KnownChunks::discard(const ChunkHash& hash) {
  if (const std::uint32_t slot = find(hash); slot != kNone) remove(slot);
}

std::uint32_t KnownChunks::find(const ChunkHash& hash) const {
  return table_.find(hash.mixed(), [&](std::uint32_t slot) { return nodes_[slot].hash == hash; });
}

void KnownChunks::remove(std::uint32_t slot) {
  table_.erase(nodes_[slot].hash.mixed(), slot);
  by_age_.remove(slot);
  free_.push_back(slot);
}

}  // namespace kvferry::cache
