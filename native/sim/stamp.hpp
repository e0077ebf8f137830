#pragma once
// Stamp: values that say what they are. Every eight bytes carry the key, the version, and where in
// the value they stand, so that bytes of another key, version or place are recognised.

#include <cstdint>
#include <cstring>

#include "base/bytes.hpp"

namespace kvferry::sim {

struct Stamp {
  std::uint8_t key = 0;
  std::uint16_t version = 0;
  bool operator==(const Stamp&) const = default;
};

// Eight bytes of the value, `index` words from its begin.
inline std::uint64_t stamped_word(Stamp stamp, std::uint64_t index) noexcept {
  const std::uint64_t place = ((index + 1) * 0x9E3779B97F4A7C15u) >> 24;
  return std::uint64_t{stamp.key} << 56 | std::uint64_t{stamp.version} << 40 | place;
}

// `offset`: of these bytes in the value; a multiple of eight.
inline void fill(MutableBytes bytes, Stamp stamp, std::size_t offset = 0) noexcept {
  std::size_t at = 0;
  for (; at < bytes.size(); at += 8) {
    const std::uint64_t word = stamped_word(stamp, (offset + at) / 8);
    std::memcpy(bytes.data() + at, &word, bytes.size() - at < 8 ? bytes.size() - at : 8);
  }
}

// Whether the bytes are those of fill().
inline bool carries(ByteView bytes, Stamp stamp, std::size_t offset = 0) noexcept {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t word = stamped_word(stamp, (offset + at) / 8);
    const std::size_t part = bytes.size() - at < 8 ? bytes.size() - at : 8;
    if (std::memcmp(bytes.data() + at, &word, part) != 0) return false;
  }
  return true;
}

// What the first word claims. Requires: eight bytes.
inline Stamp stamp_of(ByteView bytes) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof word);
  return {static_cast<std::uint8_t>(word >> 56), static_cast<std::uint16_t>(word >> 40)};
}

}  // namespace kvferry::sim
