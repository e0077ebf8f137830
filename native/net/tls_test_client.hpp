#pragma once
// A driver for one stream in tests: waits for readiness as a worker does, and for at most
// kPatience. Everything that it cannot do in that time ends as IoState::kWouldBlock.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "net/poller.hpp"
#include "net/stream.hpp"
#include "net/tls.hpp"

namespace kvferry::net::tls_test {

// The context for these settings; that it cannot be opened fails the test.
inline std::shared_ptr<TlsContext> context_of(const TlsConfig& config) {
  auto context = TlsContext::open(config);
  EXPECT_TRUE(context) << context.error().context;
  return *context;
}

class Client {
 public:
  static constexpr Nanos kPatience = 20 * kSecond;

  explicit Client(Result<std::unique_ptr<Stream>> opened)
      : stream_(std::move(*opened)), poller_(std::move(*Poller::open())) {}

  [[nodiscard]] Stream& stream() { return *stream_; }
  [[nodiscard]] std::string why(const IoResult& io) const { return stream_->failure(io); }
  void close() { stream_.reset(); }

  IoResult connect() {
    bool readable = false;
    for (;;) {
      if (!wait(readable, !readable)) return {.state = IoState::kWouldBlock};
      const IoResult io = stream_->finish_connect();
      if (io.state != IoState::kWouldBlock) return io;
      readable = stream_->awaits_readable();
    }
  }

  // Exactly `size` bytes, into three pieces of any sizes per call; shorter where the stream ends.
  std::string receive(std::size_t size, std::mt19937& random, IoResult* end = nullptr) {
    std::string text(size, '\0');
    std::size_t got = 0;
    while (got < size) {
      const auto pieces = cut(text, got, random);
      const IoResult io = stream_->receive(pieces);
      if (io.state == IoState::kOk) {
        got += io.bytes;
        if (io.bytes == length(pieces)) continue;
        stream_->set_receive_low_water(std::min<std::size_t>(size - got, 512 << 10));
      } else if (io.state != IoState::kWouldBlock) {
        if (end != nullptr) *end = io;
        break;
      }
      if (got < size && !wait(true, false)) break;
    }
    text.resize(got);
    return text;
  }
  std::string receive(std::size_t size, IoResult* end = nullptr) {
    std::mt19937 random(1);
    return receive(size, random, end);
  }

  // All of it, in pieces of any sizes per call. What was reported as sent is overwritten at once.
  IoResult send(std::string text, std::mt19937& random) {
    std::size_t sent = 0;
    while (sent < text.size()) {
      const auto pieces = cut(text, sent, random);
      const IoResult io = stream_->send(pieces);
      if (io.state == IoState::kOk) {
        std::fill_n(text.begin() + static_cast<std::ptrdiff_t>(sent), io.bytes, '!');
        sent += io.bytes;
      } else if (io.state != IoState::kWouldBlock) {
        return io;
      } else if (!wait(false, true)) {
        return {.state = IoState::kWouldBlock};
      }
    }
    return {.bytes = sent};
  }
  IoResult send(std::string text) {
    std::mt19937 random(1);
    return send(std::move(text), random);
  }

  bool wait(bool readable, bool writable) {
    EXPECT_TRUE(poller_.watch(stream_->fd(), 1, readable, writable));
    const bool ready = !poller_.wait(kPatience).empty();
    EXPECT_TRUE(ready) << "nothing happened on the stream";
    return ready;
  }

 private:
  static std::array<iovec, 3> cut(std::string& text, std::size_t from, std::mt19937& random) {
    std::array<iovec, 3> pieces{};
    for (iovec& piece : pieces) {
      const std::size_t left = text.size() - from;
      const std::size_t wish = std::size_t{1} << (random() % 23);
      piece = {text.data() + from, &piece == &pieces.back() ? left : std::min(left, wish)};
      from += piece.iov_len;
    }
    return pieces;
  }
  static std::size_t length(const std::array<iovec, 3>& pieces) {
    return pieces[0].iov_len + pieces[1].iov_len + pieces[2].iov_len;
  }

  std::unique_ptr<Stream> stream_;
  Poller poller_;
};

inline std::string noise(std::size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string text(size, '\0');
  for (std::size_t at = 0; at < size; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(text.data() + at, &word, std::min(sizeof word, size - at));
  }
  return text;
}

}  // namespace kvferry::net::tls_test
