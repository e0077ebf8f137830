#pragma once
// Tokens: passwords that expire. One names the moment of its making.

#include <charconv>
#include <string>
#include <string_view>

#include "base/clock.hpp"

namespace kvferry::sim {

inline constexpr Nanos kTokenLife = 10 * kSecond;

inline std::string make_token(Nanos now) { return std::to_string(now); }

inline bool is_valid_token(std::string_view token, Nanos now) noexcept {
  Nanos made_at = 0;
  std::from_chars(token.data(), token.data() + token.size(), made_at);
  return made_at <= now && now < made_at + kTokenLife;
}

}  // namespace kvferry::sim
