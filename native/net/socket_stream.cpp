#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "net/stream.hpp"

namespace kvferry::net {
namespace {

constexpr int kFirstWindowBytes = 4 << 20;
constexpr int kUnixBufferBytes = 512 << 10;

void set_option(int fd, int level, int option, int value) noexcept {
  // Best effort: every one of these is an optimisation or an additional guard.
  ::setsockopt(fd, level, option, &value, sizeof value);
}

void set_tcp_options(int fd) noexcept {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 45'000);
}

// By default a Unix socket holds less than 208 KiB, and every turn of sender and receiver costs two
// wake-ups (docs/decisions/0006). The kernel doubles what it is told, up to twice wmem_max. What is
// larger by default stays.
void widen_unix_buffer(int fd) noexcept {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  ::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length);
  if (bytes < kUnixBufferBytes) set_option(fd, SOL_SOCKET, SO_SNDBUF, kUnixBufferBytes / 2);
}

// Nothing is lost within a host. BBR, the default of many, sends by a timer there as well, which
// takes a third of the rate (docs/decisions/0003). Reno is there for every process.
void do_not_pace(int fd) noexcept {
  constexpr std::string_view kReno = "reno";
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno.data(), kReno.size());
}

// Before it connects, for a socket that has begun to pace goes on with it. An accepted one does,
// but at Reno's rate, which needs no timer.
void set_options(int fd, const Address& peer) noexcept {
  if (peer.family() == AF_UNIX) {
    widen_unix_buffer(fd);
  } else {
    set_tcp_options(fd);
    if (is_loopback(peer)) do_not_pace(fd);
  }
}

// A connection begins with room for 64 KiB, and the kernel adds some with every round trip. Far
// away that room is what a load waits for, and BBR at the other end takes it for the capacity of
// the path, for seconds. A limit of its own (SO_RCVBUF) would end that adding; a low-water mark
// makes room for itself, which stays.
void widen_window(int fd) noexcept {
  set_option(fd, SOL_SOCKET, SO_RCVLOWAT, kFirstWindowBytes);
  set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
}

IoResult failed(int sys_errno) noexcept {
  if (sys_errno == EAGAIN || sys_errno == EWOULDBLOCK || sys_errno == EINTR) {
    return {.state = IoState::kWouldBlock};
  }
  return {.state = IoState::kFailed, .sys_errno = sys_errno};
}

class SocketStream final : public Stream {
 public:
  SocketStream(UniqueFd fd, const Address& address, bool accepted = false)
      : fd_(std::move(fd)), address_(address), accepted_(accepted) {}

  [[nodiscard]] int fd() const noexcept override { return fd_.get(); }

  IoResult finish_connect() noexcept override {
    if (accepted_) return {};
    // Asking again is how a connection reports its state: EISCONN, EALREADY, or why it failed.
    const auto* name = reinterpret_cast<const sockaddr*>(&address_.storage);
    if (::connect(fd(), name, address_.length) == 0 || errno == EISCONN) {
      if (address_.family() != AF_UNIX) widen_window(fd());
      if (is_expected()) return {};
      return {.state = IoState::kFailed, .sys_errno = EPERM};
    }
    if (errno == EALREADY || errno == EINPROGRESS || errno == EINTR) {
      return {.state = IoState::kWouldBlock};
    }
    return {.state = IoState::kFailed, .sys_errno = errno};
  }

  IoResult receive(std::span<const iovec> pieces) noexcept override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    const ssize_t count = ::recvmsg(fd(), &message, 0);
    if (count < 0) return failed(errno);
    if (count == 0) return {.state = IoState::kClosed};
    return {.bytes = static_cast<std::size_t>(count)};
  }

  IoResult send(std::span<const iovec> pieces) noexcept override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    const ssize_t count = ::sendmsg(fd(), &message, MSG_NOSIGNAL);
    if (count < 0) return failed(errno);
    return {.bytes = static_cast<std::size_t>(count)};
  }

  [[nodiscard]] std::size_t unsent_bytes() const noexcept override {
    int bytes = 0;
    return ::ioctl(fd(), SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
  }

  void reset() noexcept override {
    if (address_.family() == AF_UNIX) return;
    constexpr linger kAtOnce{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &kAtOnce, sizeof kAtOnce);
    // close() would do, but not while a forked child has the descriptor too. Where this is refused
    // (TLS in the kernel), close() it is.
    sockaddr nowhere{};
    nowhere.sa_family = AF_UNSPEC;
    ::connect(fd(), &nowhere, sizeof nowhere);
  }

  [[nodiscard]] std::string failure(const IoResult& result) const override {
    const bool other = address_.listener != 0 && result.sys_errno == EPERM;
    return other ? "another process or another user's listens there" : reason(result);
  }

  void set_receive_low_water(std::size_t bytes) noexcept override {
    const auto value = static_cast<int>(std::min<std::size_t>(bytes, 1u << 30));
    if (address_.family() == AF_UNIX || value == low_water_) return;
    set_option(fd(), SOL_SOCKET, SO_RCVLOWAT, value);
    low_water_ = value;
  }

 private:
  // The kernel noted who listened when we connected; in a PID namespace other than ours it is 0.
  [[nodiscard]] bool is_expected() const noexcept {
    if (address_.listener == 0) return true;
    ucred peer{};
    socklen_t length = sizeof peer;
    return ::getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
           peer.pid == address_.listener && peer.uid == ::geteuid();
  }

  UniqueFd fd_;
  Address address_;
  bool accepted_;  // the other side has connected
  int low_water_ = 1;
};

}  // namespace

std::string reason(const IoResult& result) {
  if (result.state == IoState::kClosed) return "the server closed the connection";
  if (result.state == IoState::kRefused) return "the TLS handshake was refused";
  return std::strerror(result.sys_errno);
}

std::unique_ptr<Stream> adopt_stream(UniqueFd fd, const Address& peer) {
  set_options(fd.get(), peer);
  return std::make_unique<SocketStream>(std::move(fd), peer, /*accepted=*/true);
}

Result<std::unique_ptr<Stream>> open_stream(const Address& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return system_error("socket", errno);
  set_options(fd.get(), address);
  const auto* name = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::connect(fd.get(), name, address.length) != 0 && errno != EINPROGRESS) {
    return system_error("connect to " + address.text(), errno, Errc::kConnect);
  }
  return std::unique_ptr<Stream>(std::make_unique<SocketStream>(std::move(fd), address));
}

}  // namespace kvferry::net
