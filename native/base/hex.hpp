#pragma once
// Bytes as text: two lower-case hex digits for each.

#include <string>

#include "base/bytes.hpp"

namespace kvferry {

inline void append_hex(std::string& text, ByteView bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
}

inline std::string hex(ByteView bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  append_hex(text, bytes);
  return text;
}

}  // namespace kvferry
