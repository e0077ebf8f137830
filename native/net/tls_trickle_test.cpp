// TLS over streams that move little, often nothing, or nothing any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "net/tls.hpp"
#include "net/tls_test_client.hpp"
#include "net/tls_test_peer.hpp"

namespace kvferry::net {
namespace {

using tls_test::Certificates;
using tls_test::Client;
using tls_test::context_of;
using tls_test::noise;
using tls_test::Peer;
using tls_test::Talk;

// A stream that moves few bytes at a time, often says that it cannot, and may take nothing at all.
class Trickle final : public Stream {
 public:
  Trickle(std::unique_ptr<Stream> below, std::size_t bytes_max)
      : below_(std::move(below)), bytes_max_(bytes_max) {}

  void take_nothing() { full_ = true; }

  [[nodiscard]] int fd() const noexcept override { return below_->fd(); }
  IoResult finish_connect() noexcept override { return below_->finish_connect(); }
  IoResult receive(std::span<const iovec> pieces) noexcept override {
    if (random_() % 4 == 0) return {.state = IoState::kWouldBlock};
    const iovec some = cut(pieces);
    return below_->receive({&some, 1});
  }
  IoResult send(std::span<const iovec> pieces) noexcept override {
    if (full_ || random_() % 4 == 0) return {.state = IoState::kWouldBlock};
    const iovec some = cut(pieces);
    return below_->send({&some, 1});
  }
  [[nodiscard]] std::size_t unsent_bytes() const noexcept override {
    return below_->unsent_bytes();
  }
  void set_receive_low_water(std::size_t) noexcept override {}
  void reset() noexcept override { below_->reset(); }

 private:
  iovec cut(std::span<const iovec> pieces) {
    std::size_t index = 0;
    while (pieces[index].iov_len == 0) ++index;
    return {pieces[index].iov_base, std::min(pieces[index].iov_len, 1 + random_() % bytes_max_)};
  }

  const std::unique_ptr<Stream> below_;
  const std::size_t bytes_max_;
  bool full_ = false;
  std::mt19937 random_{7};
};

// A stream that takes all it is given, or so many bytes and then nothing.
class Gate final : public Stream {
 public:
  explicit Gate(std::unique_ptr<Stream> below) : below_(std::move(below)) {}

  void allow(std::size_t bytes) { room_ = bytes; }
  [[nodiscard]] std::size_t passed() const { return passed_; }

  [[nodiscard]] int fd() const noexcept override { return below_->fd(); }
  IoResult finish_connect() noexcept override { return below_->finish_connect(); }
  IoResult receive(std::span<const iovec> pieces) noexcept override {
    return below_->receive(pieces);
  }
  IoResult send(std::span<const iovec> pieces) noexcept override {
    if (room_ == 0) return {.state = IoState::kWouldBlock};
    const iovec some{pieces[0].iov_base, std::min(pieces[0].iov_len, room_)};
    const IoResult io = below_->send({&some, 1});
    room_ -= io.bytes;
    passed_ += io.bytes;
    return io;
  }
  [[nodiscard]] std::size_t unsent_bytes() const noexcept override { return 0; }
  void set_receive_low_water(std::size_t) noexcept override {}
  void reset() noexcept override { below_->reset(); }

 private:
  const std::unique_ptr<Stream> below_;
  std::size_t room_ = SIZE_MAX;
  std::size_t passed_ = 0;
};

// A SET that left while its reply was awaited looked as if it had been answered before it was sent.
TEST(TlsGate, NoAnswerIsReceivedBeforeTheSendThatReportsTheLastByte) {
  const Certificates certificates;
  for (const bool new_keys : {false, true}) {  // which OpenSSL answers without being asked
    std::promise<void> stuck;
    constexpr std::size_t kSize = 40'000;
    const Peer peer(certificates.server, [&](const Talk& talk) {
      EXPECT_EQ(talk.read(5), "first");
      stuck.get_future().wait();
      for (int turn = 0; turn < 3; ++turn) {  // what a turn asks for is answered in the next
        if (new_keys) {
          EXPECT_EQ(SSL_key_update(talk.ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
        }
        EXPECT_TRUE(talk.write("+OK"));
      }
      EXPECT_EQ(talk.read(kSize).size(), kSize);
      EXPECT_TRUE(talk.write("+OK"));
      talk.wait_for_end();
    });
    auto below = std::make_unique<Gate>(std::move(*open_stream(peer.address())));
    Gate& gate = *below;
    Client client(context_of(certificates.config())->open_over(std::move(below), "localhost", "x"));
    ASSERT_EQ(client.connect().state, IoState::kOk);
    ASSERT_EQ(client.send("first").state, IoState::kOk);

    std::string second = noise(kSize, 3);
    gate.allow(1'000);
    const iovec all{second.data(), second.size()};
    std::size_t reported = client.stream().send({&all, 1}).bytes;
    EXPECT_LT(reported, kSize);
    stuck.set_value();
    gate.allow(SIZE_MAX);  // the peer has taken what stood before it
    const std::size_t passed = gate.passed();
    EXPECT_EQ(client.receive(9), "+OK+OK+OK") << "of the first";
    EXPECT_EQ(gate.passed(), passed) << "a receive() has sent what no send() has reported";

    for (IoResult io; reported < kSize; reported += io.bytes) {
      const iovec rest{second.data() + reported, kSize - reported};
      io = client.stream().send({&rest, 1});
      ASSERT_EQ(io.state, IoState::kOk);
    }
    EXPECT_EQ(client.receive(3), "+OK") << "of the second";
  }
}

class TlsTrickle : public testing::TestWithParam<std::size_t> {};

TEST_P(TlsTrickle, FewBytesAtATimeAreEnough) {
  const Certificates certificates;
  const std::size_t size = GetParam() * 30'000;
  const std::string request = noise(size, 1);
  const std::string reply = noise(size, 2);
  std::string seen;
  {
    const Peer peer(certificates.server, [&](const Talk& talk) {
      seen = talk.read(size);
      EXPECT_TRUE(talk.write(reply));
      talk.wait_for_end();
    });
    auto trickle = std::make_unique<Trickle>(std::move(*open_stream(peer.address())), GetParam());
    Client client(
        context_of(certificates.config())->open_over(std::move(trickle), "localhost", "x"));
    const IoResult io = client.connect();
    ASSERT_EQ(io.state, IoState::kOk) << client.why(io);
    std::mt19937 random(5);
    ASSERT_EQ(client.send(request, random).state, IoState::kOk);
    EXPECT_TRUE(client.receive(size, random) == reply);
  }
  EXPECT_TRUE(seen == request);
}

INSTANTIATE_TEST_SUITE_P(BytesAtATime, TlsTrickle, testing::Values(1, 7, 60));

TEST(TlsFlood, APeerThatDemandsAnswersAndTakesNoneIsCutOff) {
  const Certificates certificates;
  const Peer peer(certificates.server, [&](const Talk& talk) {
    while (SSL_key_update(talk.ssl(), SSL_KEY_UPDATE_REQUESTED) == 1 && talk.write("x")) {
    }
  });
  auto below = std::make_unique<Trickle>(std::move(*open_stream(peer.address())), 1 << 20);
  Trickle& trickle = *below;
  Client client(context_of(certificates.config())->open_over(std::move(below), "localhost", "x"));
  ASSERT_EQ(client.connect().state, IoState::kOk);
  trickle.take_nothing();
  IoResult end;
  const std::string seen = client.receive(1 << 20, &end);
  EXPECT_EQ(end.state, IoState::kFailed);
  EXPECT_GT(seen.size(), 1'000u);
  EXPECT_LT(seen.size(), 10'000u) << "an answer has 22 bytes, and there is room for 98 KiB";
}

// A peer that never runs out of requests to begin anew, faster than they can be read.
class Endless final : public Stream {
 public:
  explicit Endless(std::unique_ptr<Stream> below) : below_(std::move(below)) {}

  [[nodiscard]] int fd() const noexcept override { return below_->fd(); }
  IoResult finish_connect() noexcept override { return {}; }
  IoResult receive(std::span<const iovec> pieces) noexcept override {
    constexpr std::string_view kHelloRequest("\x16\x03\x03\x00\x04\x00\x00\x00\x00", 9);
    std::size_t total = 0;
    for (const iovec& piece : pieces) {
      auto* at = static_cast<char*>(piece.iov_base);
      for (std::size_t i = 0; i < piece.iov_len; ++i) at[i] = kHelloRequest[sent_++ % 9];
      total += piece.iov_len;
    }
    return {.bytes = total};
  }
  IoResult send(std::span<const iovec> pieces) noexcept override {
    std::size_t total = 0;
    for (const iovec& piece : pieces) total += piece.iov_len;
    return {.bytes = total};
  }
  [[nodiscard]] std::size_t unsent_bytes() const noexcept override { return 0; }
  void set_receive_low_water(std::size_t) noexcept override {}
  void reset() noexcept override { below_->reset(); }

 private:
  const std::unique_ptr<Stream> below_;
  std::size_t sent_ = 0;
};

TEST(TlsFlood, APeerThatNeverAgreesDoesNotKeepTheCaller) {
  const Certificates certificates;
  const Peer peer(certificates.server, [](const Talk& talk) { talk.wait_for_end(); });
  auto below = std::make_unique<Endless>(std::move(*open_stream(peer.address())));
  const auto stream =
      context_of(certificates.config())->open_over(std::move(below), "localhost", "x");
  ASSERT_TRUE(stream);
  for (int turn = 0; turn < 10; ++turn) {
    ASSERT_EQ((*stream)->finish_connect().state, IoState::kWouldBlock) << "and it can give up";
  }
}

}  // namespace
}  // namespace kvferry::net
