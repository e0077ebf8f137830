#pragma once
// Integers as little-endian bytes, on any host; compilers make one move of each.

#include <concepts>
#include <cstddef>

namespace kvferry::codec {

template <std::unsigned_integral T>
void store_le(T value, std::byte* to) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
[[nodiscard]] T load_le(const std::byte* from) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(from[i]) << (8 * i)));
  }
  return value;
}

}  // namespace kvferry::codec
