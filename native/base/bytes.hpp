#pragma once
// Views of memory that somebody else owns. Whoever stores one says until when it is valid.

#include <cstddef>
#include <span>
#include <string_view>

namespace kvferry {

using ByteView = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

inline ByteView as_bytes(std::string_view text) noexcept {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(ByteView bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;

}  // namespace kvferry
