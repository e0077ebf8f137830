#pragma once
// EvictedMemory: which chunks were evicted lately, by fingerprint, so that a miss can be told from
// an eviction that came too early. Each chunk has one place; newer ones overwrite.
//
// An answer may be wrong: once in 2^32 for a chunk that was never there, and a chunk is forgotten
// when another one takes its place. It is for counting and explaining, never for finding.

#include <cstddef>
#include <cstdint>

#include "cache/hashes.hpp"
#include "cache/zeroed.hpp"

namespace kvferry::cache {

class EvictedMemory {
 public:
  explicit EvictedMemory(std::size_t places) : places_(places) {}

  void remember(const ChunkHash& hash) noexcept {
    const std::uint64_t mixed = hash.mixed();
    places_[place(mixed)] = mixed;
  }
  void forget(const ChunkHash& hash) noexcept {
    const std::uint64_t mixed = hash.mixed();
    if (places_[place(mixed)] == mixed) places_[place(mixed)] = 0;
  }
  [[nodiscard]] bool remembers(const ChunkHash& hash) const noexcept {
    const std::uint64_t mixed = hash.mixed();
    return mixed != 0 && places_[place(mixed)] == mixed;
  }

  [[nodiscard]] std::size_t size_bytes() const noexcept { return places_.size_bytes(); }

 private:
  [[nodiscard]] std::size_t place(std::uint64_t mixed) const noexcept {
    return (mixed >> 32) * places_.size() >> 32;
  }

  Zeroed<std::uint64_t> places_;
};

}  // namespace kvferry::cache
