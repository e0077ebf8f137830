#pragma once
// Contents for tests of codecs: bf16 numbers, and bytes of no kind.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "base/bytes.hpp"

namespace kvferry::codec {

inline void put_number(MutableBytes content, std::size_t at, std::uint16_t number) {
  content[2 * at] = static_cast<std::byte>(number);
  content[2 * at + 1] = static_cast<std::byte>(number >> 8);
}

// Normally distributed, as the KV of a head is.
inline std::vector<std::byte> normal_numbers(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> content(2 * count);
  for (std::size_t at = 0; at < count; ++at) {
    put_number(content, at,
               static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16));
  }
  return content;
}

inline std::vector<std::byte> every_number() {
  std::vector<std::byte> content(std::size_t{2} << 16);
  for (std::size_t at = 0; at < std::size_t{1} << 16; ++at) {
    put_number(content, at, static_cast<std::uint16_t>(at));
  }
  return content;
}

inline std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace kvferry::codec
