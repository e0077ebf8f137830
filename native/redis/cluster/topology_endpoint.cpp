#include "redis/cluster/topology_endpoint.hpp"

#include <algorithm>

namespace kvferry::redis {
namespace {

std::string_view without_brackets(std::string_view host) noexcept {
  return host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
}

bool is_host_character(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view(".-_:%").find(c) != std::string_view::npos;  // fe80::1%eth0
}

}  // namespace

bool is_host(std::string_view host) noexcept {
  host = without_brackets(host);
  return !host.empty() && host.size() <= kHostBytesMax &&
         std::ranges::all_of(host, is_host_character);
}

std::optional<net::Endpoint> make_endpoint(std::string_view host, std::int64_t port) {
  if (!is_host(host) || port < 1 || port > 65535) return std::nullopt;
  return net::Endpoint{.host = std::string(without_brackets(host)),
                       .port = static_cast<std::uint16_t>(port),
                       .unix_path = {}};
}

}  // namespace kvferry::redis
