#pragma once
// Numbers in arguments, as strictly as Valkey reads them: no sign in front of what is positive, no
// spaces, no zeros in front.

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvferry::node {

template <typename T>
[[nodiscard]] std::optional<T> number(std::string_view text) noexcept {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
  if (digits.starts_with('0') && text != "0") return std::nullopt;
  return value;
}

}  // namespace kvferry::node
