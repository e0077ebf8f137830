#pragma once
// StreamChannel: the client's own streams with poll(): what they cost without its protocol.

#include <poll.h>

#include <algorithm>
#include <memory>
#include <string>

#include "bench/channel.hpp"
#include "net/stream.hpp"
#include "net/tls.hpp"

namespace kvferry::bench {

class StreamChannel final : public Channel {
 public:
  explicit StreamChannel(Result<std::unique_ptr<net::Stream>> opened) {
    if (!opened) die(opened.error().context);
    stream_ = std::move(*opened);
    bool readable = false;
    do {
      wait(readable ? POLLIN : POLLOUT);
      last_ = stream_->finish_connect();
      readable = stream_->awaits_readable();
    } while (blocked());
  }

  std::size_t receive(char* data, std::size_t size) override {
    const iovec piece{data, size};
    for (;;) {
      last_ = stream_->receive({&piece, 1});
      if (!blocked()) return last_.bytes;
      // As the client does: few wake-ups inside a large value.
      stream_->set_receive_low_water(std::clamp<std::size_t>(size, 1, 512 << 10));
      wait(POLLIN);
    }
  }
  std::size_t send(const char* data, std::size_t size) override {
    const iovec piece{const_cast<char*>(data), size};
    for (;;) {
      last_ = stream_->send({&piece, 1});
      if (!blocked()) return last_.bytes;
      wait(POLLOUT);
    }
  }
  [[nodiscard]] std::string tls() const override {
    const auto facts = stream_->tls_facts();
    return facts ? facts->version + " " + facts->cipher : std::string();
  }

 private:
  bool blocked() {
    if (last_.state == net::IoState::kWouldBlock) return true;
    if (last_.state != net::IoState::kOk) die(stream_->failure(last_));
    return false;
  }
  void wait(short events) {
    pollfd one{.fd = stream_->fd(), .events = events, .revents = 0};
    if (::poll(&one, 1, 30'000) == 0) die("no progress for 30 s");
  }

  std::unique_ptr<net::Stream> stream_;
  net::IoResult last_;
};

// What the options --tls-* say, for --stream. One for the process.
inline net::TlsContext& stream_context(const Options& o) {
  static const auto made = [&] {
    net::TlsConfig config{.enabled = true, .ca_file = o.text("--tls-ca")};
    config.cert_file = o.text("--tls-cert");
    config.key_file = o.text("--tls-key");
    config.ciphers = o.text("--tls-suites");
    config.verify = config.ca_file.empty() ? net::TlsVerify::kNone : net::TlsVerify::kCa;
    auto context = net::TlsContext::open(config);
    if (!context) die(context.error().context);
    return std::move(*context);
  }();
  return *made;
}

}  // namespace kvferry::bench
