// The end of a Client over a scripted cluster: whatever it is waiting for, close() comes back soon
// and every batch is finished. The slots of the keys: a 15495 is node 1's, b 3300 is node 0's.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/client_driver.hpp"
#include "fuzz/scripted_cluster.hpp"

namespace kvferry::redis {
namespace {

using Peer = ScriptedServer::Peer;
using Words = ScriptedServer::Command;

Config config_for(std::uint16_t port) {
  Config config = client_config(port);
  config.topology = Topology::kCluster;
  config.connect_timeout = config.stall_timeout = kPatience;
  return config;
}

// Closes a client whose batch waits somewhere: it must come back soon, and the batch CANCELLED.
void expect_quick_end(Client& client, const std::shared_ptr<Batch>& waiting) {
  const Nanos begin = monotonic_ns();
  client.close();
  EXPECT_LT(monotonic_ns() - begin, 5 * kSecond);
  ASSERT_TRUE(waiting->finished());
  for (const Command& command : waiting->commands()) {
    EXPECT_EQ(command.status, Status::kCancelled) << waiting->error().text;
  }
  EXPECT_EQ(client.running(), 0u);
}

TEST(ClientClusterEnd, WhileNobodyAnswersTheFirstQuestion) {
  for (const std::string deaf_to : {"HELLO", "CLUSTER"}) {
    std::promise<void> asked;
    std::atomic<bool> told{false};
    ScriptedServer deaf([&](Peer&, const Words& command) {
      if (command[0] != deaf_to) return false;
      if (!told.exchange(true)) asked.set_value();
      return true;
    });
    const auto client = open(config_for(deaf.port()));
    const auto batch = make_batch(Verb::kGet, {"a", "b"});
    ASSERT_TRUE(client->submit(batch));
    ASSERT_EQ(asked.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
    expect_quick_end(*client, batch);
  }
}

TEST(ClientClusterEnd, WhileNamesAreLookedUp) {
  for (int round = 0; round < 10; ++round) {
    Config config = config_for(1);
    config.endpoint.host = "localhost";
    config.nodes.push_back({"a name with spaces", 1, {}});
    const auto client = open(config);
    const auto batch = make_batch(Verb::kGet, {"a"});
    ASSERT_TRUE(client->submit(batch));
    client->close();
    EXPECT_TRUE(batch->finished());
  }
}

TEST(ClientClusterEnd, WhileNobodyProvidesCredentials) {
  ScriptedCluster cluster(2);
  const auto source = std::make_shared<CredentialSource>();
  const auto client = open(config_for(cluster.port(0)), source);
  const auto batch = make_batch(Verb::kGet, {"a", "b"});
  ASSERT_TRUE(client->submit(batch));
  ASSERT_TRUE(source->await_request(monotonic_ns() + kPatience));
  expect_quick_end(*client, batch);
  EXPECT_TRUE(source->closed());
}

TEST(ClientClusterEnd, WhileCommandsAreParkedOrInFlight) {
  std::promise<void> reached;
  std::atomic<int> seen{0};
  ScriptedCluster cluster(2, [&](std::size_t node, Peer& peer, const Words& command) {
    if (command[0] != "GET") return false;
    if (seen.fetch_add(1) == 1) reached.set_value();
    if (node == 0) peer.send("-TRYAGAIN later\r\n");
    return true;
  });
  const auto client = open(config_for(cluster.port(0)));
  const auto batch = make_batch(Verb::kGet, {"a", "b"});
  ASSERT_TRUE(client->submit(batch));
  ASSERT_EQ(reached.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  expect_quick_end(*client, batch);
}

TEST(ClientClusterEnd, WhileManySubmitAndNodesComeAndGo) {
  for (int round = 0; round < 5; ++round) {
    ScriptedCluster cluster(2);
    Config config = config_for(cluster.port(0));
    config.connect_timeout = config.stall_timeout = 500 * kMilli;
    const auto client = open(config);
    std::vector<std::vector<std::shared_ptr<Batch>>> accepted(2);
    std::vector<std::thread> threads;
    std::atomic<int> submitted{0};
    for (auto& mine : accepted) {
      threads.emplace_back([&] {
        for (auto batch = make_batch(Verb::kTouch, {"a", "b"}); client->submit(batch);
             batch = make_batch(Verb::kTouch, {"a", "b"})) {
          mine.push_back(batch);
          submitted.fetch_add(1);
          batch->wait(monotonic_ns() + 10 * kMilli);
        }
      });
    }
    for (const Nanos until = monotonic_ns() + kPatience;
         submitted < 20 && monotonic_ns() < until;) {
      std::this_thread::yield();
    }
    cluster.move_all(static_cast<std::size_t>(round % 2));
    if (round % 2 == 0) cluster.stop(1);
    for (const Nanos until = monotonic_ns() + kPatience;
         submitted < 60 && monotonic_ns() < until;) {
      std::this_thread::yield();
    }
    client->close();
    for (std::thread& thread : threads) thread.join();
    for (const auto& mine : accepted) {
      for (const auto& batch : mine) ASSERT_TRUE(batch->finished());
    }
    EXPECT_EQ(client->running(), 0u);
  }
}

}  // namespace
}  // namespace kvferry::redis
