#include "net/address.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

namespace kvferry::net {
namespace {

Result<std::vector<Address>> unix_address(const Endpoint& endpoint) {
  const std::string& path = endpoint.unix_path;
  Address address;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof name.sun_path) {
    return Error{Errc::kInvalidArgument, "the path of a Unix socket is longer than 107 bytes"};
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  std::memcpy(&address.storage, &name, sizeof name);
  address.length = sizeof name;
  address.listener = endpoint.listener;
  return std::vector<Address>{address};
}

bool is_mapped(const Address& address) noexcept {
  return address.family() == AF_INET6 &&
         IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr) !=
             0;
}

}  // namespace

std::string Endpoint::text() const {
  if (is_unix()) return "unix:" + unix_path;
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool Address::operator==(const Address& other) const noexcept {
  return length == other.length && listener == other.listener &&
         std::memcmp(&storage, &other.storage, length) == 0;
}

std::string Address::text() const {
  if (family() == AF_UNIX) return "unix";
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), length, host, sizeof host, port,
                    sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  // IPv4 at a socket of IPv6: the other end knows it as IPv4.
  constexpr std::string_view kMapped = "::ffff:";
  std::string_view shown = host;
  if (is_mapped(*this) && shown.starts_with(kMapped)) shown.remove_prefix(kMapped.size());
  const bool v6 = shown.find(':') != std::string_view::npos;
  return (v6 ? "[" : "") + std::string(shown) + (v6 ? "]:" : ":") + port;
}

bool resolves_without_lookup(const Endpoint& endpoint) {
  if (endpoint.is_unix()) return true;
  in6_addr scratch;
  return ::inet_pton(AF_INET, endpoint.host.c_str(), &scratch) == 1 ||
         ::inet_pton(AF_INET6, endpoint.host.c_str(), &scratch) == 1;
}

bool is_loopback(const Endpoint& endpoint) {
  if (!resolves_without_lookup(endpoint)) {
    return ::strcasecmp(endpoint.host.c_str(), "localhost") == 0;
  }
  const auto addresses = resolve(endpoint);
  return addresses && is_loopback(addresses->front());
}

bool is_loopback(const Address& address) noexcept {
  if (address.family() == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    return ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (address.family() != AF_INET6) return false;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) != 0 || (is_mapped(address) && v6.s6_addr[12] == IN_LOOPBACKNET);
}

std::optional<Address> local_address(int fd) noexcept {
  Address address;
  address.length = sizeof address.storage;
  auto* name = reinterpret_cast<sockaddr*>(&address.storage);
  if (::getsockname(fd, name, &address.length) != 0) return std::nullopt;
  return address;
}

Result<std::vector<Address>> resolve(const Endpoint& endpoint) {
  if (endpoint.is_unix()) return unix_address(endpoint);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* head = nullptr;
  const int status =
      ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &head);
  if (status != 0) {
    const char* why = status == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(status);
    return Error{Errc::kResolve, "cannot resolve " + endpoint.host + ": " + why};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(head, &::freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* entry = head; entry != nullptr; entry = entry->ai_next) {
    Address address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    addresses.push_back(address);
  }
  if (addresses.empty()) return Error{Errc::kResolve, endpoint.host + " has no address"};
  return addresses;
}

}  // namespace kvferry::net
