#pragma once
// Sketch: about how often each of many chunks was wanted lately, in 8 bytes for each of `capacity`.
//
// A count-min sketch of 4-bit counters; the four counters of a chunk share one cache line. Counts
// are halved once in ten times `capacity` uses, a word at a time, so that no call pays for all.
// Source: Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", 2017.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cache/hashes.hpp"
#include "cache/zeroed.hpp"

namespace kvferry::cache {

class Sketch {
 public:
  static constexpr unsigned kCountMax = 15;

  explicit Sketch(std::size_t capacity) : words_((capacity / kWords + 1) * kWords) {}

  void count(const ChunkHash& hash) noexcept {
    const std::uint64_t mixed = hash.mixed();
    for (unsigned row = 0; row < kRows; ++row) {
      std::uint64_t& word = words_[word_of(mixed, row)];
      if ((word >> shift_of(mixed, row) & kCountMax) < kCountMax) {
        word += std::uint64_t{1} << shift_of(mixed, row);
      }
    }
    if (++uses_ % kUsesPerWord == 0) age();
  }

  [[nodiscard]] unsigned estimate(const ChunkHash& hash) const noexcept {
    const std::uint64_t mixed = hash.mixed();
    unsigned least = kCountMax;
    for (unsigned row = 0; row < kRows; ++row) {
      const std::uint64_t word = words_[word_of(mixed, row)];
      least = std::min(least, static_cast<unsigned>(word >> shift_of(mixed, row) & kCountMax));
    }
    return least;
  }

  [[nodiscard]] std::size_t size_bytes() const noexcept { return words_.size_bytes(); }

 private:
  static constexpr std::size_t kWords = 8;  // of a cache line
  static constexpr unsigned kRows = 4;      // of two words each
  static constexpr std::uint64_t kUsesPerWord = 10;

  // The line by the upper half of the bits; in each row five bits of the lower half say where.
  [[nodiscard]] std::size_t word_of(std::uint64_t mixed, unsigned row) const noexcept {
    const std::size_t line = (mixed >> 32) * (words_.size() / kWords) >> 32;
    return line * kWords + row * 2 + (mixed >> (row * 5 + 4) & 1);
  }
  static unsigned shift_of(std::uint64_t mixed, unsigned row) noexcept {
    return static_cast<unsigned>(mixed >> (row * 5) & 15) * 4;
  }

  void age() noexcept {
    words_[aged_] = words_[aged_] >> 1 & 0x7777'7777'7777'7777ull;
    if (++aged_ == words_.size()) aged_ = 0;
  }

  Zeroed<std::uint64_t> words_;
  std::uint64_t uses_ = 0;
  std::size_t aged_ = 0;
};

}  // namespace kvferry::cache
