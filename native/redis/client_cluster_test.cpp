// Client over a scripted cluster: maps that are behind, redirects, nodes that die.
// The slots of the keys: a 15495, b 3300, c 7365, d 11298; node 0 has those below 8192.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <mutex>
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
  config.connect_timeout = config.stall_timeout = 2 * kSecond;  // a busy machine is no stall
  return config;
}

TEST(ClientCluster, ABatchStreamsFromEveryNode) {
  ScriptedCluster cluster(2);
  const auto client = open(config_for(cluster.port(1)));
  const std::vector<std::string> keys{"a", "b", "c", "d", "x{a}", "x{b}"};
  std::vector<std::string> written;
  for (const std::string& key : keys) written.push_back(key + std::string(200'000, 'v'));
  EXPECT_EQ(run(*client, make_batch(Verb::kSet, keys, &written)), "OK OK OK OK OK OK");
  std::vector<std::string> read;
  for (const std::string& value : written) read.emplace_back(value.size(), '.');
  EXPECT_EQ(run(*client, make_batch(Verb::kGet, keys, &read)), "OK OK OK OK OK OK");
  EXPECT_EQ(read, written);
  for (const char* key : {"b", "c", "x{b}"}) EXPECT_TRUE(cluster.node(0).has(key));
  for (const char* key : {"a", "d", "x{a}"}) EXPECT_TRUE(cluster.node(1).has(key));
  EXPECT_EQ(run(*client, make_batch(Verb::kDelete, {"a", "b", "no"})), "OK OK MISS");
  for (const Router::Node& node : client->router().nodes()) {
    EXPECT_GT(node.server->stats().bytes_received.load(), 600'000u);
  }
}

TEST(ClientCluster, AMapThatIsBehindIsMendedOnTheWay) {
  ScriptedCluster cluster(2);
  const auto client = open(config_for(cluster.port(0)));
  ASSERT_EQ(run(*client, make_batch(Verb::kTouch, {"a", "b"})), "MISS MISS");
  cluster.node(1).put("b", "moved");
  cluster.move(key_slot("b"), 1, false);
  std::vector<std::string> value{"....."};
  EXPECT_EQ(run(*client, make_batch(Verb::kGet, {"b"}, &value)), "OK");
  EXPECT_EQ(value[0], "moved");
  std::vector<std::string> written{std::string(2'000'000, 'w')};
  cluster.move(key_slot("c"), 1, false);
  EXPECT_EQ(run(*client, make_batch(Verb::kSet, {"c"}, &written)), "OK");
  EXPECT_TRUE(cluster.node(1).has("c"));
}

TEST(ClientCluster, AskingComesRightBeforeItsCommandAndNoOther) {
  std::mutex mutex;
  std::map<const Peer*, std::string> last;  // what each connection to node 1 said last
  std::vector<std::string> served;          // keys that came behind an ASKING
  ScriptedCluster cluster(2, [&](std::size_t node, Peer& peer, const Words& command) {
    const bool imported = command.size() > 1 && command[1].ends_with("{b}");
    if (node == 0 && command[0] == "GET" && imported) {
      peer.send(cluster.redirect("ASK", command[1], 1));
      return true;
    }
    if (node == 0) return false;
    const std::lock_guard lock(mutex);
    const std::string before = std::exchange(last[&peer], command[0]);
    if (before == "ASKING") {
      served.push_back(command.size() > 1 ? command[1] : command[0]);
      peer.send("$5\r\nasked\r\n");
      return true;
    }
    return false;  // MOVED, if the slot is not its own
  });
  const auto client = open(config_for(cluster.port(0)));
  std::vector<std::string> keys;
  for (int i = 0; i < 40; ++i) {
    keys.push_back(std::to_string(i) + (i % 2 == 0 ? "{b}" : "{a}"));
  }
  std::vector<std::string> values(keys.size(), std::string(5, '.'));
  const auto batch = make_batch(Verb::kGet, keys, &values);
  const std::string outcome = run(*client, batch);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const bool imported = i % 2 == 0;
    EXPECT_EQ(batch->commands()[i].status, imported ? Status::kOk : Status::kMiss) << keys[i];
    EXPECT_EQ(values[i], imported ? "asked" : ".....");
  }
  const std::lock_guard lock(mutex);
  EXPECT_EQ(served.size(), 20u);
  for (const std::string& key : served) EXPECT_TRUE(key.ends_with("{b}")) << key;
}

TEST(ClientCluster, ASetThatIsRedirectedBeforeItsValueIsSentAgainWhole) {
  // A server says MOVED behind the first answer, when of the second value only the head has come.
  std::atomic<bool> first{true};
  std::atomic<int> cut{0};
  ScriptedCluster cluster(2, [&](std::size_t node, Peer& peer, const Words& command) {
    if (node != 0 || command[0] != "SET") return false;
    if (!first.exchange(false)) return false;
    for (const char* key : {"1{b}", "2{b}", "3{b}", "4{b}", "5{b}"}) {
      cluster.move(key_slot(key), 1, true);
    }
    peer.send("+OK\r\n" + cluster.redirect("MOVED", "1{b}", 1));
    peer.wait_for_end();
    ++cut;
    return true;
  });
  Config config = config_for(cluster.port(0));
  config.connections = 1;
  config.window_bytes = 1;  // one value at a time, with the head of the next sent early
  config.stall_timeout = kPatience;
  const auto client = open(config);
  const std::vector<std::string> keys{"0{b}", "1{b}", "2{b}", "3{b}", "4{b}", "5{b}"};
  std::vector<std::string> written;
  for (char c = 'a'; c <= 'f'; ++c) written.emplace_back(500'000, c);
  EXPECT_EQ(run(*client, make_batch(Verb::kSet, keys, &written)), "OK OK OK OK OK OK");
  EXPECT_EQ(cut, 1) << "the head of the second was on that connection";
  EXPECT_FALSE(cluster.node(0).has("1{b}"));
  std::vector<std::string> read(5, std::string(500'000, '.'));
  EXPECT_EQ(run(*client, make_batch(Verb::kGet, {keys.begin() + 1, keys.end()}, &read)),
            "OK OK OK OK OK");
  EXPECT_EQ(read, std::vector<std::string>(written.begin() + 1, written.end()));
}

TEST(ClientCluster, ANodeThatDiesTakesOnlyItsOwnKeys) {
  ScriptedCluster cluster(2);
  const auto client = open(config_for(cluster.port(0)));
  ASSERT_EQ(run(*client, make_batch(Verb::kTouch, {"a", "b"})), "MISS MISS");
  cluster.stop(1);
  EXPECT_EQ(run_until(*client, Verb::kTouch, {"a", "b"}, "UNAVAILABLE MISS"), "UNAVAILABLE MISS");
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"a", "b", "c"})), "UNAVAILABLE MISS MISS");
  }
  cluster.move_all(0);  // somebody takes its place
  EXPECT_EQ(run_until(*client, Verb::kTouch, {"a", "b"}, "MISS MISS"), "MISS MISS");
}

TEST(ClientCluster, AReplacementOnAnotherPortIsFound) {
  ScriptedCluster cluster(2);
  const auto client = open(config_for(cluster.port(0)));
  std::vector<std::string> values{"one", "two"};
  ASSERT_EQ(run(*client, make_batch(Verb::kSet, {"a", "b"}, &values)), "OK OK");
  cluster.stop(1);
  cluster.start(1);  // on a new port, empty
  EXPECT_EQ(run_until(*client, Verb::kTouch, {"a", "b"}, "MISS OK"), "MISS OK");
  EXPECT_EQ(run(*client, make_batch(Verb::kSet, {"a", "b"}, &values)), "OK OK");
  EXPECT_TRUE(cluster.node(1).has("a"));
}

TEST(ClientCluster, WithoutAMapItIsUnavailableAndComesBack) {
  std::atomic<bool> broken{true};
  ScriptedCluster cluster(2, [&](std::size_t, Peer& peer, const Words& command) {
    if (!broken || command[0] != "CLUSTER") return false;
    peer.send("-CLUSTERDOWN the cluster is down\r\n");
    return true;
  });
  const auto client = open(config_for(cluster.port(0)));
  const auto batch = make_batch(Verb::kTouch, {"a"});
  EXPECT_EQ(run(*client, batch), "UNAVAILABLE");
  EXPECT_NE(batch->error().text.find("CLUSTERDOWN"), std::string::npos) << batch->error().text;
  broken = false;
  EXPECT_EQ(run_until(*client, Verb::kTouch, {"a", "b"}, "MISS MISS"), "MISS MISS");
}

TEST(ClientCluster, NodesThatNameEachOtherEndAsUnavailable) {
  ScriptedCluster cluster(2, [&](std::size_t node, Peer& peer, const Words& command) {
    if (command[0] != "GET") return false;
    peer.send(cluster.redirect("MOVED", command[1], 1 - node));
    return true;
  });
  const auto client = open(config_for(cluster.port(0)));
  const auto batch = make_batch(Verb::kGet, {"a", "b"});
  EXPECT_EQ(run(*client, batch), "UNAVAILABLE UNAVAILABLE");
  EXPECT_NE(batch->error().text.find("without end"), std::string::npos) << batch->error().text;
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"a", "b"})), "MISS MISS");
}

// Holds the control thread: from now on nobody answers CLUSTER SLOTS.
struct HungLook {
  std::atomic<bool> hangs{false};
  std::promise<void> looking;
  std::atomic<bool> told{false};
  ScriptedCluster cluster{1, [this](std::size_t, Peer& peer, const Words& command) {
                            if (command[0] == "GET") return peer.send("-TRYAGAIN later\r\n");
                            if (!hangs || command[0] != "CLUSTER") return false;
                            if (!told.exchange(true)) looking.set_value();
                            return true;
                          }};
};

// A look that hangs takes a second: what waits for it is never quicker than this, and what does not
// is quicker in one of a few rounds, also on a busy machine.
constexpr Nanos kWithoutTheLook = 500 * kMilli;
constexpr int kRounds = 5;

Nanos parked_until_its_deadline() {
  HungLook hung;
  const auto client = open(config_for(hung.cluster.port(0)));
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"a"})), "MISS");
  hung.hangs = true;
  const auto first = make_batch(Verb::kGet, {"a"}, nullptr, monotonic_ns() + kPatience);
  EXPECT_TRUE(client->submit(first));
  EXPECT_EQ(hung.looking.get_future().wait_for(std::chrono::seconds(10)),
            std::future_status::ready);
  const Nanos begin = monotonic_ns();
  EXPECT_EQ(run(*client, make_batch(Verb::kGet, {"a"}, nullptr, begin + 50 * kMilli)), "TIMEOUT");
  return monotonic_ns() - begin;
}

Nanos parked_until_cancelled() {
  HungLook hung;
  const auto client = open(config_for(hung.cluster.port(0)));
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"a"})), "MISS");
  hung.hangs = true;
  const auto batch = make_batch(Verb::kGet, {"a"});
  const auto id = client->submit(batch);
  EXPECT_TRUE(id);
  EXPECT_EQ(hung.looking.get_future().wait_for(std::chrono::seconds(10)),
            std::future_status::ready);
  const Nanos begin = monotonic_ns();
  client->cancel(*id);
  EXPECT_TRUE(batch->wait(begin + kPatience));
  return monotonic_ns() - begin;
}

TEST(ClientCluster, AParkedCommandKeepsItsDeadlineWhileALookHangs) {
  Nanos took = kNever;
  for (int i = 0; i < kRounds && took >= kWithoutTheLook; ++i) took = parked_until_its_deadline();
  EXPECT_LT(took, kWithoutTheLook);
}

TEST(ClientCluster, AParkedCommandIsCancelledWhileALookHangs) {
  Nanos took = kNever;
  for (int i = 0; i < kRounds && took >= kWithoutTheLook; ++i) took = parked_until_cancelled();
  EXPECT_LT(took, kWithoutTheLook);
}

}  // namespace
}  // namespace kvferry::redis
