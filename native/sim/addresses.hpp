#pragma once
// Addresses: where the nodes of a schedule are. All have one host name; the port says which it is.

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "net/address.hpp"

namespace kvferry::sim {

inline constexpr const char* kHost = "sim";
inline constexpr int kPortBase = 7000;
inline constexpr std::size_t kNowhere = SIZE_MAX;  // an address where nobody answers

inline net::Endpoint endpoint_of(int node) {
  return {.host = kHost, .port = static_cast<std::uint16_t>(kPortBase + node), .unix_path = {}};
}

inline net::Address address_at(std::uint16_t port) noexcept {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  net::Address address;
  std::memcpy(&address.storage, &name, sizeof name);
  address.length = sizeof name;
  return address;
}

inline std::size_t node_at(const net::Address& address) noexcept {
  sockaddr_in name{};
  std::memcpy(&name, &address.storage, sizeof name);
  const int port = ntohs(name.sin_port);
  return port < kPortBase ? kNowhere : static_cast<std::size_t>(port - kPortBase);
}

}  // namespace kvferry::sim
