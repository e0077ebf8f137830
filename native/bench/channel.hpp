#pragma once
// Channel: a blocking connection; here by recv() and send() and nothing else.
//
// Whatever makes no progress for 30 s, and every other failure, ends the process.

#include <algorithm>
#include <string>
#include <string_view>

#include "bench/blocking_socket.hpp"

namespace kvferry::bench {

class Channel {
 public:
  virtual ~Channel() = default;
  // Each moves at least one byte and returns how many.
  virtual std::size_t receive(char* data, std::size_t size) = 0;
  virtual std::size_t send(const char* data, std::size_t size) = 0;
  // What more is there already; perhaps nothing.
  virtual std::size_t receive_rest(char*, std::size_t) { return 0; }
  // Version and cipher; empty without TLS.
  [[nodiscard]] virtual std::string tls() const { return {}; }

  void send_all(std::string_view text) {
    while (!text.empty()) text.remove_prefix(send(text.data(), text.size()));
  }

  // Receives exactly `size` bytes that start with `head`; another start is reported at once,
  // because an error reply would otherwise be waited on for ever.
  void receive_reply(char* data, std::size_t size, std::string_view head) {
    std::size_t got = 0;
    while (got < size) {
      const bool first = got == 0;
      got += receive(data + got, size - got);
      if ((first || got == size) &&
          std::memcmp(data, head.data(), std::min(got, head.size())) != 0) {
        std::string text(data, std::min<std::size_t>(got, 60));
        char more[100];  // the rest of an error, which is longer than the reply that was wanted
        text.append(more, receive_rest(more, sizeof more));
        die("unexpected reply: " + text);
      }
    }
    if (data[size - 2] != '\r' || data[size - 1] != '\n')
      die("a reply does not end where it should");
  }
};

class SocketChannel final : public Channel {
 public:
  SocketChannel(UniqueFd fd, int flags) : fd_(std::move(fd)), flags_(flags) {}

  std::size_t receive(char* data, std::size_t size) override {
    ssize_t count = 0;
    do count = ::recv(fd_.get(), data, size, flags_);
    while (count < 0 && errno == EINTR);
    if (count == 0) die("the server closed the connection");
    if (count < 0) die_errno("recv");
    return static_cast<std::size_t>(count);
  }
  std::size_t receive_rest(char* data, std::size_t size) override {
    const ssize_t count = ::recv(fd_.get(), data, size, MSG_DONTWAIT);
    return count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  std::size_t send(const char* data, std::size_t size) override {
    ssize_t count = 0;
    do count = ::send(fd_.get(), data, size, MSG_NOSIGNAL);
    while (count < 0 && errno == EINTR);
    if (count <= 0) die_errno("send");
    return static_cast<std::size_t>(count);
  }

 private:
  UniqueFd fd_;
  int flags_;
};

}  // namespace kvferry::bench
