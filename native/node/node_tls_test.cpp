// The node over TLS: who is let in, what is carried, and files that change.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/thread.hpp"
#include "net/tls_test_certificates.hpp"
#include "net/tls_test_client.hpp"
#include "node/node_server.hpp"
#include "node/test_store.hpp"

namespace kvferry::node {
namespace {

using net::IoResult;
using net::IoState;
using net::TlsConfig;
using net::tls_test::Certificates;
using net::tls_test::Client;
using net::tls_test::Identity;
using net::tls_test::noise;

bool comes(const std::function<bool()>& condition) {
  for (int i = 0; i < 12'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

class NodeTls : public testing::Test {
 protected:
  NodeTls() {
    certificates_.server.write(base_ + "-other");
    options_.listen.emplace_back();
    options_.listen[0].host = "127.0.0.1";
    options_.tls = {.enabled = true,
                    .ca_file = base_ + "-ca.crt",
                    .cert_file = base_ + "-other.crt",
                    .key_file = base_ + "-other.key"};
    options_.store = {.size_bytes = 32 * kMiB, .arena = {.hugetlb = false, .prefault = false}};
    options_.threads = 2;
  }

  void start() {
    auto node = NodeServer::open(options_);
    ASSERT_TRUE(node.has_value()) << node.error().context;
    node_ = std::move(*node);
  }
  // Of a client who shows his certificate.
  [[nodiscard]] TlsConfig known() const {
    TlsConfig config = certificates_.config();
    config.cert_file = base_ + "-client.crt";
    config.key_file = base_ + "-client.key";
    return config;
  }
  [[nodiscard]] Result<std::unique_ptr<net::Stream>> dial(const TlsConfig& config) const {
    auto context = net::TlsContext::open(config);
    EXPECT_TRUE(context) << context.error().context;
    return dial(**context);
  }
  [[nodiscard]] Result<std::unique_ptr<net::Stream>> dial(net::TlsContext& context) const {
    const auto addresses = net::resolve(node_->endpoints()[0]);
    return context.open_stream(addresses->front(), "localhost");
  }
  // What a command is answered; empty when the node ends the connection instead.
  static std::string ask(Client& client, const std::vector<std::string>& words, std::size_t bytes,
                         IoResult* end = nullptr) {
    (void)client.send(TestSession::encoded(words));
    return client.receive(bytes, end);
  }
  [[nodiscard]] std::uint64_t refused() const { return node_->context().counters.tls_refused; }

  const Certificates certificates_;
  const std::string base_ = certificates_.base;
  NodeOptions options_;
  std::unique_ptr<NodeServer> node_;
};

TEST_F(NodeTls, ValuesTravelBothWaysWithAndWithoutTheKernel) {
  const std::string value = noise(4 * kMiB + 64, 1);
  const std::string head = "$" + std::to_string(value.size()) + "\r\n";
  for (const bool ktls : {false, true}) {
    for (const char* version : {"1.2", "1.3"}) {
      options_.tls.ktls = ktls;
      options_.tls.min_version = version;
      start();
      Client client(dial(known()));
      ASSERT_EQ(client.connect().state, IoState::kOk);
      EXPECT_EQ(ask(client, {"SET", "k", value}, 5), "+OK\r\n");
      EXPECT_TRUE(ask(client, {"GET", "k"}, head.size() + value.size() + 2) ==
                  head + value + "\r\n");
      EXPECT_TRUE(comes([&] { return node_->context().in_flight.bytes() == 0; }));
      EXPECT_EQ(refused(), 0u);
    }
  }
}

TEST_F(NodeTls, WhoShowsNoCertificateOfOursIsToldSoAndServedNothing) {
  start();
  const Identity stranger = Identity::make({.name = "stranger"});
  const std::string other = Certificates::unused_name();
  stranger.write(other);
  TlsConfig strange = certificates_.config();
  strange.cert_file = other + ".crt";
  strange.key_file = other + ".key";
  std::uint64_t count = 0;
  for (const TlsConfig& config : {certificates_.config(), strange}) {
    Client client(dial(config));
    IoResult end = client.connect();  // with TLS 1.3 our half is done before the node refuses
    if (end.state == IoState::kOk) {
      EXPECT_EQ(ask(client, {"PING"}, 7, &end), "");
    }
    EXPECT_EQ(end.state, IoState::kRefused) << client.why(end);
    ++count;
    EXPECT_TRUE(comes([&] { return refused() == count; }));
  }
  for (const char* suffix : {".crt", ".key"}) ::unlink((other + suffix).c_str());
  Client client(dial(known()));
  ASSERT_EQ(client.connect().state, IoState::kOk);
  EXPECT_EQ(ask(client, {"PING"}, 7), "+PONG\r\n");
}

TEST_F(NodeTls, WhoDoesNotSpeakTlsIsNotServedAndWhoStopsInTheHandshakeIsNotWaitedFor) {
  options_.pace = {.window = 600 * kMilli, .window_bytes_min = kMiB};
  start();
  const auto addresses = net::resolve(node_->endpoints()[0]);
  Client plain(net::open_stream(addresses->front()));
  ASSERT_EQ(plain.connect().state, IoState::kOk);
  IoResult end;
  EXPECT_EQ(ask(plain, {"PING"}, 7, &end).find("PONG"), std::string::npos);
  EXPECT_TRUE(comes([&] { return refused() == 1; }));
  Client silent(net::open_stream(addresses->front()));
  ASSERT_EQ(silent.connect().state, IoState::kOk);
  EXPECT_TRUE(comes([&] { return node_->context().counters.slow_closed == 1; }));
}

TEST_F(NodeTls, ManyClientsAtOnceAndOnesWhoComeBackResume) {
  start();
  const std::string value = noise(300'000, 2);
  const std::string head = "$" + std::to_string(value.size()) + "\r\n";
  {
    Client client(dial(known()));
    ASSERT_EQ(client.connect().state, IoState::kOk);
    EXPECT_EQ(ask(client, {"SET", "k", value}, 5), "+OK\r\n");
  }
  const auto context = *net::TlsContext::open(known());
  std::atomic<int> resumed = 0;
  constexpr int kThreads = 4;
  constexpr int kDials = 4;
  std::vector<Thread> threads;
  for (int index = 0; index < kThreads; ++index) {
    threads.emplace_back("client", [&] {
      for (int i = 0; i < kDials; ++i) {
        Client client(dial(*context));
        ASSERT_EQ(client.connect().state, IoState::kOk);
        EXPECT_TRUE(ask(client, {"GET", "k"}, head.size() + value.size() + 2) ==
                    head + value + "\r\n");
        resumed += client.stream().tls_facts()->resumed ? 1 : 0;
      }
    });
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_GE(resumed.load(), kThreads * (kDials - 1)) << "each thread's later dials at least";
}

TEST_F(NodeTls, ARenewedAuthorityTurnsAwayThoseOfTheOldOneAlsoWhoCouldResume) {
  start();
  const auto context = *net::TlsContext::open(known());
  {
    Client client(dial(*context));
    ASSERT_EQ(client.connect().state, IoState::kOk);
    EXPECT_EQ(ask(client, {"PING"}, 7), "+PONG\r\n");  // the ticket comes with it
  }
  const std::string kept = base_ + "-kept";
  options_.tls.ca_file = kept + ".crt";
  certificates_.authority.write(kept);
  start();
  Identity::make({.name = "new authority"}).write(kept);
  {
    Client client(dial(*context));
    IoResult end = client.connect();
    if (end.state == IoState::kOk) {
      EXPECT_EQ(ask(client, {"PING"}, 7, &end), "");
    }
    EXPECT_EQ(end.state, IoState::kRefused) << client.why(end);
  }
  ::unlink((kept + ".crt").c_str());  // of no use: what is loaded stays
  Client client(dial(*context));
  (void)client.connect();
  EXPECT_TRUE(comes([&] { return node_->context().counters.tls_files_refused == 1; }));
  ::unlink((kept + ".key").c_str());
}

TEST_F(NodeTls, FilesOfNoUseAndAMissingCertificateAreSaidAtTheStart) {
  options_.tls.cert_file = base_ + "-none.crt";
  auto node = NodeServer::open(options_);
  ASSERT_FALSE(node.has_value());
  EXPECT_EQ(node.error().code, Errc::kCertificate);
  options_.tls = {.enabled = true};
  node = NodeServer::open(options_);
  ASSERT_FALSE(node.has_value());
  EXPECT_EQ(node.error().code, Errc::kInvalidArgument);
}

}  // namespace
}  // namespace kvferry::node
