#pragma once
// An endpoint as servers write it: a host and a port that arrived in a reply or an error line.
//
// What is taken here is resolved, dialled, shown to the TLS library and logged, so only the
// characters of host names and addresses pass.

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "net/address.hpp"

namespace kvferry::redis {

inline constexpr std::size_t kHostBytesMax = 255;  // RFC 1035

// A name, IPv4 or IPv6 address, the last also in brackets; never empty.
[[nodiscard]] bool is_host(std::string_view host) noexcept;

// `host` and `port` as an endpoint, IPv6 without brackets.
// nullopt: it is no host, or the port is not 1 to 65535.
[[nodiscard]] std::optional<net::Endpoint> make_endpoint(std::string_view host, std::int64_t port);

// Decimal digits and nothing else.
template <typename T>
[[nodiscard]] std::optional<T> parse_number(std::string_view text) noexcept {
  T number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

}  // namespace kvferry::redis
