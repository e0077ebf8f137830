// TLS streams once they are up: bytes both ways, records, ends. Handshakes are tested apart.
#include "net/tls.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "net/tls_stream.hpp"
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

struct Way {
  const char* name;
  const char* version;
  bool socket_bio;  // as for TLS in the kernel: OpenSSL's own BIO, exchanged after the handshake
};

class TlsOver : public testing::TestWithParam<Way> {
 protected:
  Result<std::unique_ptr<Stream>> open(const Peer& peer) {
    TlsConfig config = certificates_.config();
    config.min_version = GetParam().version;
    auto setup = TlsSetup::load(config, TlsRole::kClient);
    EXPECT_TRUE(setup);
    return TlsStream::open(*setup, std::move(*open_stream(peer.address())),
                           {.name = "localhost", .peer = "", .ktls = GetParam().socket_bio});
  }
  static void limit(SSL_CTX* context) {
    const bool old = std::string(GetParam().version) == "1.2";
    SSL_CTX_set_max_proto_version(context, old ? TLS1_2_VERSION : TLS1_3_VERSION);
  }

  const Certificates certificates_;
};

TEST_P(TlsOver, MovesMegabytesBothWaysInAnyPieces) {
  constexpr std::size_t kSize = 20 << 20;
  const std::string request = noise(kSize, 1);
  const std::string reply = noise(kSize, 2);
  std::string seen;
  {
    const Peer peer(
        certificates_.server,
        [&](const Talk& talk) {
          seen = talk.read(kSize);
          EXPECT_TRUE(talk.write(reply));
          EXPECT_EQ(talk.read(1), "") << "and then the client says goodbye";
          EXPECT_NE(SSL_get_shutdown(talk.ssl()) & SSL_RECEIVED_SHUTDOWN, 0);
        },
        1, limit);
    Client client(open(peer));
    const IoResult io = client.connect();
    ASSERT_EQ(io.state, IoState::kOk) << client.why(io);
    std::mt19937 random(3);
    ASSERT_EQ(client.send(request, random).state, IoState::kOk);
    EXPECT_TRUE(client.receive(kSize, random) == reply);
    const auto facts = client.stream().tls_facts();
    ASSERT_TRUE(facts);
    EXPECT_EQ(facts->version, std::string("TLSv") + GetParam().version);
    EXPECT_NE(facts->cipher.find("GCM"), std::string::npos);
  }
  EXPECT_TRUE(seen == request);
}

TEST_P(TlsOver, TheEndOfThePeerIsSeenBehindItsLastBytes) {
  // With TLS's goodbye, the socket's, or both.
  for (const auto& [goodbye, shut] : {std::pair{true, true}, {false, true}, {true, false}}) {
    const Peer peer(
        certificates_.server,
        [goodbye = goodbye, shut = shut](const Talk& talk) {
          EXPECT_EQ(talk.read(4), "ping");
          EXPECT_TRUE(talk.write("pong"));
          if (goodbye) SSL_shutdown(talk.ssl());
          if (shut) ::shutdown(SSL_get_fd(talk.ssl()), SHUT_WR);
          char byte = 0;
          EXPECT_LE(::recv(SSL_get_fd(talk.ssl()), &byte, 1, 0), 1);  // until the client closes
        },
        1, limit);
    Client client(open(peer));
    ASSERT_EQ(client.connect().state, IoState::kOk);
    ASSERT_EQ(client.send("ping").state, IoState::kOk);
    IoResult end;
    EXPECT_EQ(client.receive(100, &end), "pong");
    EXPECT_EQ(end.state, IoState::kClosed) << client.why(end);
    EXPECT_EQ(client.why(end), "the server closed the connection");
    EXPECT_EQ(client.stream().send({}).state, IoState::kClosed) << "which is final";
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, TlsOver,
                         testing::Values(Way{"Tls12", "1.2", false}, Way{"Tls13", "1.3", false},
                                         Way{"Tls12SocketBio", "1.2", true},
                                         Way{"Tls13SocketBio", "1.3", true}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST(Tls, PiecesOfASendDoNotShareARecord) {
  const Certificates certificates;
  std::vector<std::size_t> records;
  {
    const Peer peer(certificates.server, [&](const Talk& talk) {
      std::string memory(1 << 20, '\0');  // SSL_read returns one record at most
      for (std::size_t got = 0, count = 0; got < 40 + 20'000; got += count) {
        if (SSL_read_ex(talk.ssl(), memory.data(), memory.size(), &count) != 1) break;
        records.push_back(count);
      }
    });
    Client client(context_of(certificates.config())->open_stream(peer.address(), "localhost"));
    ASSERT_EQ(client.connect().state, IoState::kOk);
    std::string head(40, 'h');
    std::string value(20'000, 'v');
    const std::array<iovec, 2> pieces{iovec{head.data(), head.size()},
                                      iovec{value.data(), value.size()}};
    EXPECT_EQ(client.stream().send(pieces).bytes, 20'040u);
    EXPECT_EQ(client.stream().receive(std::array{iovec{head.data(), 1}}).state,
              IoState::kWouldBlock);
  }
  EXPECT_EQ(records, (std::vector<std::size_t>{40, 16'384, 20'000 - 16'384}));
}

TEST(Tls, WhatAFullPeerDoesNotTakeIsNotReportedAndNotSentTwice) {
  const Certificates certificates;
  std::promise<void> full;
  std::promise<std::size_t> total;
  std::string seen;
  std::size_t sent = 0;
  {
    const Peer peer(certificates.server, [&](const Talk& talk) {
      full.get_future().wait();
      seen = talk.read(total.get_future().get());
      talk.write("done");
      talk.wait_for_end();
    });
    Client client(context_of(certificates.config())->open_stream(peer.address(), "localhost"));
    ASSERT_EQ(client.connect().state, IoState::kOk);
    std::string memory = noise(32 << 20, 9);
    IoResult io;
    do {
      const iovec piece{memory.data() + sent, memory.size() - sent};
      io = client.stream().send({&piece, 1});
      sent += io.bytes;
    } while (io.state == IoState::kOk && sent < memory.size());
    ASSERT_EQ(io.state, IoState::kWouldBlock) << "32 MiB fit into no socket";
    EXPECT_GT(client.stream().unsent_bytes(), 0u);
    full.set_value();
    total.set_value(sent + 1'000'000);
    const std::string rest = memory.substr(sent, 1'000'000);
    std::fill_n(memory.begin(), sent, '!');  // what is reported may be reused at once
    ASSERT_EQ(client.send(rest).state, IoState::kOk);
    EXPECT_EQ(client.receive(4), "done");
  }
  EXPECT_EQ(seen.size(), sent + 1'000'000);
  EXPECT_TRUE(seen == noise(32 << 20, 9).substr(0, seen.size()));
}

TEST(Tls, NewKeysAreAnsweredWithoutTheCallersHelp) {
  const Certificates certificates;
  {
    const Peer peer(certificates.server, [&](const Talk& talk) {
      EXPECT_EQ(talk.read(4), "ping");
      for (int index = 0; index < 5; ++index) {
        EXPECT_EQ(SSL_key_update(talk.ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
        EXPECT_TRUE(talk.write("pong"));
      }
      EXPECT_EQ(talk.read(5), "again");
      EXPECT_TRUE(talk.write("done"));
      talk.wait_for_end();
    });
    Client client(context_of(certificates.config())->open_stream(peer.address(), "localhost"));
    ASSERT_EQ(client.connect().state, IoState::kOk);
    ASSERT_EQ(client.send("ping").state, IoState::kOk);
    EXPECT_EQ(client.receive(20), "pongpongpongpongpong");
    ASSERT_EQ(client.send("again").state, IoState::kOk);
    EXPECT_EQ(client.receive(4), "done");
  }
}

TEST(Tls, AResetSaysNoGoodbyeAndLeavesNothingOnItsWay) {
  const Certificates certificates;
  for (const bool ktls : {false, true}) {
    std::promise<void> full;
    int end = 0;
    {
      const Peer peer(certificates.server, [&](const Talk& talk) {
        full.get_future().wait();
        std::string memory(1 << 16, '\0');
        for (ssize_t got = 1; got > 0;) {  // below TLS, which would hide how it ends
          got = ::recv(SSL_get_fd(talk.ssl()), memory.data(), memory.size(), 0);
          end = got < 0 ? errno : 0;
        }
      });
      TlsConfig config = certificates.config();
      config.ktls = ktls;
      Client client(context_of(config)->open_stream(peer.address(), "localhost"));
      ASSERT_EQ(client.connect().state, IoState::kOk);
      std::string memory = noise(32 << 20, 9);
      const iovec piece{memory.data(), memory.size()};
      while (client.stream().send({&piece, 1}).state == IoState::kOk) {
      }
      client.stream().reset();
      client.close();
      full.set_value();
    }
    EXPECT_EQ(end, ECONNRESET);
  }
}

TEST(Tls, AFlippedBitEndsTheStream) {
  const Certificates certificates;
  const Peer peer(certificates.server, [&](const Talk& talk) {
    EXPECT_EQ(talk.read(4), "ping");
    EXPECT_TRUE(talk.write("pong"));
    const std::string forged = std::string("\x17\x03\x03", 3) + std::string("\0\x20", 2) +
                               std::string(32, 'x');  // a record that no key made
    EXPECT_EQ(::send(SSL_get_fd(talk.ssl()), forged.data(), forged.size(), MSG_NOSIGNAL), 37);
    talk.wait_for_end();
  });
  Client client(context_of(certificates.config())->open_stream(peer.address(), "localhost"));
  ASSERT_EQ(client.connect().state, IoState::kOk);
  ASSERT_EQ(client.send("ping").state, IoState::kOk);
  IoResult end;
  EXPECT_EQ(client.receive(100, &end), "pong");
  EXPECT_EQ(end.state, IoState::kFailed);
  EXPECT_NE(client.why(end).find("bad record mac"), std::string::npos) << client.why(end);
}

TEST(Tls, ManyStreamsOfOneContextOnManyThreads) {
  const Certificates certificates;
  constexpr int kThreads = 4;
  constexpr int kDials = 6;
  const std::string value = noise(300'000, 4);
  const Peer peer(
      certificates.server,
      [&](const Talk& talk) {
        EXPECT_TRUE(talk.write(talk.read(value.size())));
        talk.wait_for_end();
      },
      kThreads * kDials);
  const auto context = context_of(certificates.config());
  std::vector<Thread> threads;
  std::atomic<int> resumed = 0;
  for (int index = 0; index < kThreads; ++index) {
    threads.emplace_back("client", [&] {
      for (int dial = 0; dial < kDials; ++dial) {
        Client client(context->open_stream(peer.address(), "localhost"));
        const IoResult io = client.connect();
        ASSERT_EQ(io.state, IoState::kOk) << client.why(io);
        ASSERT_EQ(client.send(value).state, IoState::kOk);
        EXPECT_TRUE(client.receive(value.size()) == value);
        resumed += client.stream().tls_facts()->resumed ? 1 : 0;
      }
    });
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_GE(resumed.load(), kThreads * (kDials - 1)) << "each thread's later dials at least";
}

}  // namespace
}  // namespace kvferry::net
