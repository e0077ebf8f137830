// What a client asks of the system for what it does: counted, not timed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/client_driver.hpp"
#include "fuzz/scripted_cluster.hpp"

namespace kvferry::redis {
namespace {

Config config_for(std::uint16_t port) {
  Config config = client_config(port);
  config.connect_timeout = config.stall_timeout = 2 * kSecond;  // a busy machine is no stall
  return config;
}

Server& only_node(Client& client) { return *client.router().nodes().at(0).server; }

// Servers that were greeted slowly are asked how far away they are, at such times at the most.
constexpr auto kQuiet = std::chrono::milliseconds(300);

// From then on it has nothing to do but what it is told.
void await_all(Client& client) {
  const auto up = [&] {
    const auto nodes = client.router().nodes();
    return std::ranges::all_of(nodes, [&](const Router::Node& node) {
      const int data = static_cast<int>(client.config().connections);
      return node.server->small_lane_up() && node.server->connections_up() == data;
    });
  };
  for (const Nanos until = monotonic_ns() + kPatience; !up() && monotonic_ns() < until;) {
    std::this_thread::yield();
  }
  ASSERT_TRUE(up());
  for (const Nanos until = monotonic_ns() + kPatience; monotonic_ns() < until;) {
    const std::uint64_t before = client.wake_ups();
    std::this_thread::sleep_for(kQuiet);
    if (client.wake_ups() == before) return;
  }
  FAIL() << "it does not come to rest";
}

// Whoever has less room for commands than for answers may still send all of them at once.
TEST(ClientCalls, AThousandQuestionsTakeOneRoundTrip) {
  constexpr std::size_t kQuestions = 1000;
  std::atomic<std::size_t> asked{0};
  ScriptedServer server([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "EXISTS") return false;
    if (asked.fetch_add(1) + 1 < kQuestions) return true;
    std::string answers;
    for (std::size_t i = 0; i < kQuestions; ++i) answers += ":1\r\n";
    peer.send(answers);
    return true;
  });
  Config config = config_for(server.port());
  config.stall_timeout = kPatience;
  const auto client = open(config);
  await_all(*client);
  const std::vector<std::string> keys(kQuestions, std::string(60, 'k'));
  const std::uint64_t before = client->wake_ups();
  EXPECT_EQ(run(*client, make_batch(Verb::kExists, keys)).substr(0, 5), "OK OK");
  EXPECT_LE(client->wake_ups() - before, 2u) << "one to ask, one for the answers";
}

TEST(ClientCalls, OneValueWakesOneOfFourWorkers) {
  ScriptedServer server;
  server.put("k", "value");
  Config config = config_for(server.port());
  config.connections = config.workers = 4;
  const auto client = open(config);
  await_all(*client);
  std::vector<std::string> value{"....."};
  const std::uint64_t before = client->wake_ups();
  EXPECT_EQ(run(*client, make_batch(Verb::kGet, {"k"}, &value)), "OK");
  EXPECT_LE(client->wake_ups() - before, 2u) << "one to ask, one for the answer";
}

TEST(ClientCalls, NodesWithNothingToDoAreNotLookedAt) {
  constexpr std::size_t kNodes = 16;
  constexpr std::uint64_t kValues = 50;
  ScriptedCluster cluster(kNodes);
  Config config = config_for(cluster.port(0));
  config.topology = Topology::kCluster;
  config.connections = config.workers = 1;
  const auto client = open(config);
  std::vector<std::string> value{"value"};
  ASSERT_EQ(run(*client, make_batch(Verb::kSet, {"a"}, &value)), "OK");
  ASSERT_EQ(client->router().nodes().size(), kNodes);
  await_all(*client);
  const std::uint64_t before = client->visits();
  for (std::uint64_t i = 0; i < kValues; ++i) {
    ASSERT_EQ(run(*client, make_batch(Verb::kGet, {"a"}, &value)), "OK");
  }
  EXPECT_LE(client->visits() - before, 3 * kValues) << "to ask, and for the answer";
}

}  // namespace
}  // namespace kvferry::redis
