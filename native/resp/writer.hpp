#pragma once
// Writer: RESP commands into a fixed piece of memory.
//
// Values are not written: a command that carries one ends with its bulk header, and the payload and
// kCrlf follow it on the wire from the caller's own memory.
// Format: RESP2/RESP3 arrays of bulk strings (Redis protocol specification).

#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/bytes.hpp"

namespace kvferry::resp {

inline constexpr std::string_view kCrlf = "\r\n";

class Writer {
 public:
  // Writes to `memory`, which the caller owns and keeps until the bytes are sent.
  explicit Writer(MutableBytes memory) noexcept : memory_(memory) {}

  // Starts a command of `count` arguments, the name included.
  Writer& command(std::size_t count) noexcept { return header('*', count); }

  Writer& bulk(std::string_view text) noexcept {
    return header('$', text.size()).raw(text).raw(kCrlf);
  }

  Writer& number(long long value) noexcept {
    std::array<char, 24> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
    return bulk({text.data(), static_cast<std::size_t>(end - text.data())});
  }

  // The header of a bulk whose payload the caller sends itself.
  Writer& bulk_header(std::size_t length) noexcept { return header('$', length); }

  // What ends a payload that the caller sent itself.
  Writer& end_payload() noexcept { return raw(kCrlf); }

  [[nodiscard]] ByteView written() const noexcept { return memory_.first(used_); }
  // Whether everything fitted. What did not fit is missing, never written past the end.
  [[nodiscard]] bool complete() const noexcept { return !overflow_; }

 private:
  Writer& header(char type, std::size_t count) noexcept {
    std::array<char, 24> text{};
    text[0] = type;
    const auto end = std::to_chars(text.data() + 1, text.data() + text.size(), count).ptr;
    return raw({text.data(), static_cast<std::size_t>(end - text.data())}).raw(kCrlf);
  }

  Writer& raw(std::string_view text) noexcept {
    if (text.size() > memory_.size() - used_) {
      overflow_ = true;
    } else if (!text.empty()) {
      std::memcpy(memory_.data() + used_, text.data(), text.size());
      used_ += text.size();
    }
    return *this;
  }

  MutableBytes memory_;
  std::size_t used_ = 0;
  bool overflow_ = false;
};

}  // namespace kvferry::resp
