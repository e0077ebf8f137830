#pragma once
// Blocking sockets that give up after 30 s without progress. Every failure ends the process.

#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "bench/options.hpp"

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

// Connects to --unix, or to --host and --port.
inline UniqueFd dial(const Options& o) {
  const std::string& path = o.text("--unix");
  UniqueFd fd = path.empty() ? dial_tcp(o.text("--host"), o.text("--port")) : dial_unix(path);
  const timeval limit{.tv_sec = 30, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return fd;
}

inline void send_all(int fd, const char* data, std::size_t size) {
  while (size != 0) {
    const ssize_t n = ::send(fd, data, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) die_errno("send");
    data += n;
    size -= static_cast<std::size_t>(n);
  }
}

// Receives exactly `size` bytes that start with `head`; another start is reported at once, because
// an error reply would otherwise be waited on for ever.
inline void recv_reply(int fd, char* data, std::size_t size, std::string_view head, int flags) {
  std::size_t got = 0;
  while (got < size) {
    const ssize_t n = ::recv(fd, data + got, size - got, flags);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) die("the server closed the connection");
    if (n < 0) die_errno("recv");
    const bool first = got == 0;
    got += static_cast<std::size_t>(n);
    if ((first || got == size) && std::memcmp(data, head.data(), std::min(got, head.size())) != 0) {
      std::string text(data, std::min<std::size_t>(got, 60));
      char more[100];  // the rest of an error, which is longer than the reply that was wanted
      const ssize_t rest = ::recv(fd, more, sizeof more, MSG_DONTWAIT);
      if (rest > 0) text.append(more, static_cast<std::size_t>(rest));
      die("unexpected reply: " + text);
    }
  }
  if (data[size - 2] != '\r' || data[size - 1] != '\n') die("a reply does not end where it should");
}

// AUTH with KVFERRY_RESP_PASSWORD (and KVFERRY_RESP_USERNAME), where they are set.
inline void authenticate(int fd) {
  const char* password = std::getenv("KVFERRY_RESP_PASSWORD");
  if (password == nullptr || *password == '\0') return;
  const char* user = std::getenv("KVFERRY_RESP_USERNAME");
  std::string command = user != nullptr ? "*3\r\n$4\r\nAUTH\r\n" : "*2\r\n$4\r\nAUTH\r\n";
  for (const char* text : {user, password}) {
    if (text == nullptr) continue;
    command.append("$").append(std::to_string(std::strlen(text)));
    command.append("\r\n").append(text).append("\r\n");
  }
  send_all(fd, command.data(), command.size());
  char reply[5];
  recv_reply(fd, reply, sizeof reply, "+OK\r\n", 0);
}

}  // namespace kvferry::bench
