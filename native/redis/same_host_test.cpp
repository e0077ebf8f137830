// SameHost inside a client: who is moved to the Unix socket, who is not, and that nobody waits.
#include "redis/same_host.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/client_driver.hpp"
#include "fuzz/scripted_server.hpp"

namespace kvferry::redis {
namespace {

using Script = ScriptedServer::Script;
using Command = ScriptedServer::Command;
using Peer = ScriptedServer::Peer;

std::string bulk(const std::string& text) {
  return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
}

resp::Value text(std::string words) {
  return {.type = resp::Type::kBulk, .integer = 0, .text = std::move(words), .items = {}};
}

resp::Value list(resp::Type type, std::vector<resp::Value> items) {
  return {.type = type, .integer = 0, .text = {}, .items = std::move(items)};
}

void wait_until(const std::function<bool()>& is_so) {
  for (const Nanos until = monotonic_ns() + kPatience; !is_so() && monotonic_ns() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(is_so());
}

// A server with two listeners, both in this process, so that its process id is true.
class TwoWays {
 public:
  explicit TwoWays(std::string run_id_there = "one", Script on_socket = {})
      : run_id_there_(std::move(run_id_there)),
        on_socket_(std::move(on_socket)),
        socket_([this](auto& peer, const auto& words) { return there(peer, words); }, path_),
        tcp_([this](auto& peer, const auto& words) { return here(peer, words); }) {}

  [[nodiscard]] Config config(SameHostWay way = SameHostWay::kAuto) const {
    Config config = client_config(tcp_.port());
    config.same_host = way;
    return config;
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  void put(const std::string& key, const std::string& value) {
    tcp_.put(key, value);
    socket_.put(key, value);
  }

  std::atomic<bool> mute = false;       // of the question
  std::atomic<bool> elsewhere = false;  // there is a proxy, as far as the server can see

 private:
  bool here(Peer& peer, const Command& words) {
    if (words[0] == "INFO") return mute || info(peer, "one");
    if (words[0] == "CONFIG") return mute || peer.send("%1\r\n" + bulk(words[2]) + bulk(path_));
    if (words[0] != "CLIENT" || words[1] != "INFO") return false;
    const std::string address = elsewhere ? "127.0.0.1:1" : peer.address();
    return mute || peer.send(bulk("id=3 addr=" + address + " laddr=127.0.0.1:2\n"));
  }
  bool there(Peer& peer, const Command& words) {
    if (on_socket_ && on_socket_(peer, words)) return true;
    return words[0] == "INFO" && info(peer, run_id_there_);
  }
  static bool info(Peer& peer, const std::string& run_id) {
    return peer.send(bulk("# Server\r\nprocess_id:" + std::to_string(::getpid()) +
                          "\r\nrun_id:" + run_id + "\r\ntcp_port:1\r\n"));
  }

  const std::string run_id_there_;
  const Script on_socket_;
  const std::string path_ = testing::TempDir() + "kvferry-two-ways-" + std::to_string(::getpid());
  ScriptedServer socket_;
  ScriptedServer tcp_;
};

Server& only_node(Client& client) { return *client.router().nodes().at(0).server; }

void await_socket(Client& client) {
  const auto all = static_cast<int>(client.config().connections);
  wait_until([&] { return only_node(client).unix_up() == all; });
}

void await_text(Client& client, const std::string& words) {
  wait_until([&] { return client.same_host()->text().find(words) != std::string::npos; });
}

TEST(SameHost, UnderstandsWhatServersSayInEitherProtocol) {
  const resp::Value info = text("# Server\r\nprocess_id:7\r\nrun_id:abc\r\n");
  for (const auto type : {resp::Type::kMap, resp::Type::kArray}) {
    const auto found = parse_local_server(info, list(type, {text("unixsocket"), text("/a/b")}));
    ASSERT_TRUE(found);
    EXPECT_EQ(found->run_id, "abc");
    EXPECT_EQ(found->process, 7);
    EXPECT_EQ(found->unix_path, "/a/b");
  }
  EXPECT_EQ(seen_address(text("id=1 laddr=[::1]:6 addr=[::1]:5 fd=8\n")), "[::1]:5");
  EXPECT_EQ(seen_address(text("id=1 laddr=[::1]:6\n")), "");
}

TEST(SameHost, WhatIsMissingIsNamed) {
  const auto why = [](const std::string& info, const std::string& path) {
    const auto config = list(resp::Type::kMap, {text("unixsocket"), text(path)});
    return parse_local_server(text(info), config).error().context;
  };
  const std::string info = "process_id:7\r\nrun_id:abc\r\n";
  EXPECT_NE(why("run_id:abc\r\n", "/a").find("process_id"), std::string::npos);
  EXPECT_NE(why("last_run_id:a\r\nprocess_id:7\r\n", "/a").find("run_id"), std::string::npos);
  EXPECT_NE(why(info, "").find("no Unix socket"), std::string::npos);
  EXPECT_NE(why(info, "s.sock").find("not absolute"), std::string::npos);
  EXPECT_NE(why(info, std::string("/a\0b", 4)).find("not absolute"), std::string::npos);
  const auto nothing = parse_local_server(text(info), list(resp::Type::kMap, {}));
  EXPECT_NE(nothing.error().context.find("no Unix socket"), std::string::npos);
}

TEST(SameHost, AConnectionGoesToTheNamedListenerAlone) {
  const TwoWays server;
  net::Endpoint endpoint;
  endpoint.unix_path = server.path();
  for (const bool other : {false, true}) {
    endpoint.listener = ::getpid() + (other ? 1 : 0);
    auto stream = net::open_stream(net::resolve(endpoint)->front());
    ASSERT_TRUE(stream);
    const net::IoResult io = (*stream)->finish_connect();
    EXPECT_EQ(io.state, other ? net::IoState::kFailed : net::IoState::kOk);
    const std::string why = other ? (*stream)->failure(io) : "";
    EXPECT_EQ(why.find("another process") != std::string::npos, other);
  }
}

TEST(SameHost, DataMovesToTheSocketAndNoOperationFailsMeanwhile) {
  TwoWays server;
  const std::string value(1'000'000, 'v');
  server.put("a", value);
  for (int turn = 0; turn < 10; ++turn) {
    const auto client = open(server.config());
    for (bool moved = false; !moved;) {
      moved = only_node(*client).unix_up() == 2;
      std::vector<std::string> read{std::string(value.size(), '.')};
      ASSERT_EQ(run(*client, make_batch(Verb::kGet, {"a"}, &read)), "OK");
      ASSERT_EQ(read.front(), value);
    }
    const Stats& stats = only_node(*client).stats();
    EXPECT_EQ(stats.connections_lost.load(), 0u);
    EXPECT_EQ(stats.dials_failed.load(), 0u);
    EXPECT_EQ(stats.commands_retried.load(), 0u);
    EXPECT_EQ(client->same_host()->text(), "unix:" + server.path());
    EXPECT_EQ(only_node(*client).connections_up(), 2);
  }
}

TEST(SameHost, AConnectionThatAlwaysHasWorkMovesAsWell) {
  TwoWays server;
  server.put("a", "value");
  Config config = server.config();
  config.connections = 1;
  const auto client = open(config);
  std::atomic<bool> done = false;
  std::vector<std::thread> callers;
  for (int index = 0; index < 4; ++index) {
    callers.emplace_back([&] {
      while (!done) {
        std::vector<std::string> read(20, "value");
        const std::vector<std::string> keys(20, "a");
        const std::string got = run(*client, make_batch(Verb::kGet, keys, &read));
        EXPECT_EQ(got.find_first_not_of("OK "), std::string::npos) << got;
      }
    });
  }
  await_socket(*client);
  done = true;
  for (std::thread& caller : callers) caller.join();
}

TEST(SameHost, AnotherServerBehindThePathIsLeftAlone) {
  const TwoWays server("another");
  const auto client = open(server.config());
  await_text(*client, "another server answers there");
  EXPECT_EQ(run(*client, make_batch(Verb::kExists, {"a"})), "MISS");
  EXPECT_EQ(only_node(*client).unix_up(), 0);
}

TEST(SameHost, AProxyIsNotGoneRound) {
  TwoWays server;
  server.elsewhere = true;
  const auto client = open(server.config());
  await_text(*client, "a proxy");
  EXPECT_EQ(only_node(*client).unix_up(), 0);
}

TEST(SameHost, AQuestionWithoutAnAnswerHoldsNothingUp) {
  TwoWays server;
  server.mute = true;
  const auto client = open(server.config());
  EXPECT_EQ(run(*client, make_batch(Verb::kExists, {"a"})), "MISS");
  await_text(*client, "in time");
  EXPECT_EQ(run(*client, make_batch(Verb::kExists, {"a"})), "MISS");
  EXPECT_EQ(only_node(*client).unix_up(), 0);
  server.mute = false;
  await_socket(*client);
}

TEST(SameHost, ASocketThatDoesNotGreetLeavesTheDialToTcp) {
  std::atomic<bool> greets = true;
  const TwoWays server("one", [&](Peer& peer, const Command& words) {
    // One connection that was up ends, and from then on none is let in.
    const bool ends =
        words[0] == "EXISTS" ? greets.exchange(false) : words[0] == "HELLO" && !greets;
    if (ends) peer.hang_up();
    return ends;
  });
  const auto client = open(server.config());
  await_socket(*client);
  // The connection for small commands moves as well, and is not counted.
  wait_until([&] { return run(*client, make_batch(Verb::kExists, {"a"})) == "MISS" && !greets; });
  EXPECT_EQ(only_node(*client).stats().dials_failed.load(), 0u);
  EXPECT_TRUE(only_node(*client).available());
  await_text(*client, "TCP: ");
  greets = true;
  wait_until([&] { return client->same_host()->text() == "unix:" + server.path(); });
}

TEST(SameHost, InsistingOnASocketThatCannotBeHadIsUnavailable) {
  TwoWays server;
  {
    const auto client = open(server.config(SameHostWay::kUnix));
    EXPECT_EQ(run(*client, make_batch(Verb::kExists, {"a"})), "MISS");
    EXPECT_EQ(only_node(*client).stats().dials_failed.load(), 0u);
    await_socket(*client);
  }
  server.elsewhere = true;
  const auto client = open(server.config(SameHostWay::kUnix));
  EXPECT_EQ(run(*client, make_batch(Verb::kExists, {"a"})), "UNAVAILABLE");
  EXPECT_NE(client->router().down_reason().find("same_host='unix'"), std::string::npos);
  EXPECT_NE(client->router().down_reason().find("a proxy"), std::string::npos);
  server.elsewhere = false;
  EXPECT_EQ(run_until(*client, Verb::kExists, {"a"}, "MISS"), "MISS");
}

TEST(SameHost, AClientThatIsClosedWhileItAsksDoesNotWait) {
  TwoWays server;
  server.mute = true;
  for (const SameHostWay way : {SameHostWay::kAuto, SameHostWay::kUnix}) {
    Config config = server.config(way);
    config.connect_timeout = 3600 * kSecond;
    const auto client = open(config);
    if (way == SameHostWay::kAuto) run(*client, make_batch(Verb::kExists, {"a"}));
    const Nanos started = monotonic_ns();
    client->close();
    EXPECT_LT(monotonic_ns() - started, kPatience);
  }
}

TEST(SameHost, OnlyALoneServerAtALoopbackAddressIsAsked) {
  Config config;
  for (const char* host : {"127.0.0.1", "127.9.8.7", "::1", "localhost", "LocalHost"}) {
    config.endpoint.host = host;
    EXPECT_TRUE(asks_for_socket(config)) << host;
  }
  for (const char* host : {"10.0.0.1", "fe80::1", "cache-1", "localhost.example", ""}) {
    config.endpoint.host = host;
    EXPECT_FALSE(asks_for_socket(config)) << host;
  }
  config.endpoint.host = "127.0.0.1";
  config.topology = Topology::kCluster;
  EXPECT_FALSE(asks_for_socket(config));
  config.topology = Topology::kStandalone;
  config.same_host = SameHostWay::kTcp;
  EXPECT_FALSE(asks_for_socket(config));
  config.same_host = SameHostWay::kAuto;
  config.endpoint.unix_path = "/a";
  EXPECT_FALSE(asks_for_socket(config));
}

}  // namespace
}  // namespace kvferry::redis
