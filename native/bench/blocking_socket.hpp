#pragma once
// Blocking sockets that give up after 30 s without progress. Every failure ends the process.

#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <string>

#include "base/unique_fd.hpp"
#include "bench/options.hpp"
#include "net/address.hpp"

namespace kvferry::bench {

inline void set_nodelay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

inline UniqueFd dial_tcp(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) die("no address for " + host);
  UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0) {
    die_errno("connect to " + host + " port " + port);
  }
  ::freeaddrinfo(found);
  set_nodelay(fd.get());
  return fd;
}

inline UniqueFd dial_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) die("--unix: the path is too long");
  path.copy(address.sun_path, path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    die_errno("connect to " + path);
  }
  return fd;
}

inline UniqueFd dial(const net::Endpoint& where) {
  UniqueFd fd = where.is_unix() ? dial_unix(where.unix_path)
                                : dial_tcp(where.host, std::to_string(where.port));
  const timeval limit{.tv_sec = 30, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return fd;
}

}  // namespace kvferry::bench
