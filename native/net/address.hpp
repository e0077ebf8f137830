#pragma once
// Address: where a server listens, and how a name becomes addresses.
//
// resolve() may block for as long as the system resolver likes: never call it on an I/O thread
// (see resolver.hpp). Addresses come in the resolver's order (RFC 6724), IPv6 and IPv4 alike.

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace kvferry::net {

// What the user asked for: a host name or literal with a port, or the path of a Unix socket.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
  std::string unix_path;  // non-empty: host and port are not used
  pid_t listener = 0;     // of a Unix socket: see Address

  [[nodiscard]] bool is_unix() const noexcept { return !unix_path.empty(); }
  // "host:port", "[v6]:port" or "unix:/path": for messages.
  [[nodiscard]] std::string text() const;
};

// One socket address. A value.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  // Of a Unix socket: the process that must listen there, as our user; else connecting fails before
  // a byte is sent. 0: whoever does.
  pid_t listener = 0;

  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
  [[nodiscard]] bool operator==(const Address& other) const noexcept;
  // As that of an Endpoint; IPv4 that came to a socket of IPv6 is shown as IPv4.
  [[nodiscard]] std::string text() const;
};

// Whether resolve() answers at once: a Unix path or a numeric address.
[[nodiscard]] bool resolves_without_lookup(const Endpoint& endpoint);

// Whether only this host has it. Of an endpoint: names other than "localhost" are not looked up.
[[nodiscard]] bool is_loopback(const Endpoint& endpoint);
[[nodiscard]] bool is_loopback(const Address& address) noexcept;

// The address of our own end of a connected socket.
[[nodiscard]] std::optional<Address> local_address(int fd) noexcept;

// All addresses of the endpoint, at least one.
// Fails with: kResolve (the resolver's text), kInvalidArgument (Unix path too long).
Result<std::vector<Address>> resolve(const Endpoint& endpoint);

}  // namespace kvferry::net
