#pragma once
// Address: where a server listens, and how a name becomes addresses.
//
// resolve() may block for as long as the system resolver likes: never call it on an I/O thread
// (see resolver.hpp). Addresses come in the resolver's order (RFC 6724), IPv6 and IPv4 alike.

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace kvferry::net {

// What the user asked for: a host name or literal with a port, or the path of a Unix socket.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
  std::string unix_path;  // non-empty: host and port are not used

  [[nodiscard]] bool is_unix() const noexcept { return !unix_path.empty(); }
  // "host:port", "[v6]:port" or "unix:/path": for messages.
  [[nodiscard]] std::string text() const;
};

// One socket address. A value.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
  [[nodiscard]] std::string text() const;
};

// Whether resolve() answers at once: a Unix path or a numeric address.
[[nodiscard]] bool resolves_without_lookup(const Endpoint& endpoint);

// All addresses of the endpoint, at least one.
// Fails with: kResolve (the resolver's text), kInvalidArgument (Unix path too long).
Result<std::vector<Address>> resolve(const Endpoint& endpoint);

}  // namespace kvferry::net
