// The cluster's source of maps, over scripted nodes.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "base/test_names.hpp"
#include "fuzz/scripted_cluster.hpp"
#include "redis/cluster/topology_source.hpp"

namespace kvferry::redis {
namespace {

std::uint16_t refusing_port() {
  const ScriptedServer gone;
  return gone.port();
}

net::Endpoint at(std::uint16_t port) { return {"127.0.0.1", port, {}}; }

// A source with these seeds.
struct Asking {
  explicit Asking(const std::vector<std::uint16_t>& seeds) {
    config.topology = Topology::kCluster;
    config.connect_timeout = kSecond;
    config.endpoint = at(seeds.at(0));
    for (std::size_t i = 1; i < seeds.size(); ++i) config.nodes.push_back(at(seeds[i]));
    source = cluster_source(config, {*transport, resolver, nullptr, stop});
  }

  // "7001 7002": the ports of the primaries; or what went wrong.
  std::string ask(const std::vector<std::uint16_t>& known = {}, bool troubled = false) {
    std::vector<net::Endpoint> endpoints;
    for (const std::uint16_t port : known) endpoints.push_back(at(port));
    const auto map = source->ask(endpoints, troubled);
    if (!map) return std::string(name(map.error().code)) + ": " + map.error().context;
    std::string text;
    for (const Shard& shard : map->shards()) {
      text += (text.empty() ? "" : " ") + std::to_string(shard.primary.endpoint.port);
    }
    return text;
  }

  Config config;
  EventFd stop = std::move(*EventFd::open());
  net::Resolver resolver;
  std::shared_ptr<net::Transport> transport = net::plain_transport();
  std::unique_ptr<TopologySource> source;
};

std::string ports(const ScriptedCluster& cluster) {
  return std::to_string(cluster.port(0)) + " " + std::to_string(cluster.port(1));
}

TEST(ClusterSource, AnySeedKnowsTheMap) {
  ScriptedCluster cluster(2);
  for (const std::size_t seed : {0u, 1u}) {
    Asking asking({cluster.port(seed)});
    EXPECT_EQ(asking.ask(), ports(cluster));
  }
}

TEST(ClusterSource, SeedsThatAreDeadAreSteppedOver) {
  ScriptedCluster cluster(2);
  Asking asking({refusing_port(), refusing_port(), cluster.port(1)});
  EXPECT_EQ(asking.ask(), ports(cluster));
}

TEST(ClusterSource, WithoutALivingNodeItSaysWhy) {
  const std::uint16_t port = refusing_port();
  Asking asking({refusing_port(), port});
  const std::string why = asking.ask({refusing_port()});
  EXPECT_NE(why.find("127.0.0.1:" + std::to_string(port)), std::string::npos) << why;
  EXPECT_NE(why.find("refused"), std::string::npos) << why;
}

TEST(ClusterSource, NodesThatHangCostALimitedTime) {
  ScriptedCluster cluster(2);
  ScriptedServer deaf([](auto&, auto&) { return true; });
  ScriptedServer dumb([](auto&, const ScriptedServer::Command& command) {
    return command[0] == "CLUSTER";  // it greets and then says nothing
  });
  Asking asking({deaf.port(), dumb.port(), cluster.port(0)});
  const Nanos begin = monotonic_ns();
  EXPECT_EQ(asking.ask(), ports(cluster));
  EXPECT_LT(monotonic_ns() - begin, 8 * kSecond);
  EXPECT_GE(deaf.accepted(), 1);
  EXPECT_GE(dumb.accepted(), 1);
}

TEST(ClusterSource, KeepsItsLinkWhileAllIsWell) {
  ScriptedCluster cluster(2);
  Asking asking({cluster.port(0)});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(asking.ask(), ports(cluster));
  EXPECT_EQ(cluster.looks(), 5);
  EXPECT_EQ(cluster.node(0).accepted() + cluster.node(1).accepted(), 1);
}

TEST(ClusterSource, ALinkThatEndsIsReplaced) {
  ScriptedCluster cluster(2);
  Asking asking({cluster.port(0), cluster.port(1)});
  EXPECT_EQ(asking.ask(), ports(cluster));
  const std::string before = ports(cluster);
  cluster.stop(0);
  EXPECT_EQ(asking.ask(), before) << "the other node says it now";
}

TEST(ClusterSource, InTroubleSomebodyElseIsAskedSometime) {
  // A node that was cut off tells an old map for as long as anybody asks it.
  const std::string old_map = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:1\r\n";
  ScriptedServer cut_off([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "CLUSTER") return false;
    peer.send(old_map);
    return true;
  });
  ScriptedCluster cluster(2);
  Asking asking({cut_off.port()});
  const std::vector<std::uint16_t> known{cut_off.port(), cluster.port(0), cluster.port(1)};
  EXPECT_EQ(asking.ask(), "1");
  EXPECT_EQ(asking.ask(known, false), "1") << "all seems well, so it keeps its link";
  std::string answer;
  for (int i = 0; i < 200 && answer != ports(cluster); ++i) answer = asking.ask(known, true);
  EXPECT_EQ(answer, ports(cluster)) << "each time another one, in a random order";
}

TEST(ClusterSource, ANodeThatKnowsNoSlotsIsNotBelieved) {
  ScriptedServer lonely([](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "CLUSTER") return false;
    peer.send("*0\r\n");
    return true;
  });
  ScriptedCluster cluster(2);
  Asking asking({lonely.port(), cluster.port(0)});
  EXPECT_EQ(asking.ask(), ports(cluster));
  Asking alone({lonely.port()});
  const std::string why = alone.ask();
  EXPECT_NE(why.find("no slots"), std::string::npos) << why;
  EXPECT_NE(why.find(std::to_string(lonely.port())), std::string::npos) << why;
}

TEST(ClusterSource, ALinkWhoseNodeLostItsSlotsIsLeft) {
  ScriptedCluster cluster(2);
  std::atomic<bool> forgotten{false};
  ScriptedServer forgetful([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "CLUSTER" || !forgotten) return false;
    peer.send("*0\r\n");
    return true;
  });
  ScriptedServer other([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "CLUSTER") return false;
    peer.send(forgotten ? std::string("*0\r\n")
                        : "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:" +
                              std::to_string(forgetful.port()) + "\r\n");
    return true;
  });
  Asking asking({other.port(), cluster.port(0)});
  EXPECT_EQ(asking.ask(), std::to_string(forgetful.port()));
  forgotten = true;  // CLUSTER RESET
  EXPECT_EQ(asking.ask(), ports(cluster));
}

TEST(ClusterSource, WhatIsNoClusterSaysSo) {
  ScriptedServer standalone([](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "CLUSTER") return false;
    peer.send("-ERR This instance has cluster support disabled\r\n");
    return true;
  });
  Asking asking({standalone.port()});
  EXPECT_EQ(asking.ask(), "server: 127.0.0.1:" + std::to_string(standalone.port()) +
                              ": ERR This instance has cluster support disabled");
}

TEST(ClusterSource, AMalformedMapIsNotBelieved) {
  ScriptedServer odd([](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "CLUSTER") return false;
    peer.send("*1\r\n*3\r\n:5\r\n:3\r\n*2\r\n$1\r\nh\r\n:1\r\n");
    return true;
  });
  ScriptedCluster cluster(2);
  Asking alone({odd.port()});
  EXPECT_TRUE(alone.ask().starts_with("protocol: ")) << alone.ask();
  Asking asking({odd.port(), cluster.port(0)});
  EXPECT_EQ(asking.ask(), ports(cluster));
}

TEST(ClusterSource, TheStopSignalEndsIt) {
  Asking stopped({1});  // before the servers, whose threads may still signal at its end
  ScriptedServer deaf([&](auto&, auto&) {
    stopped.stop.signal();
    return true;
  });
  ScriptedServer never;
  stopped.config.endpoint = at(deaf.port());
  stopped.config.nodes = {at(never.port())};
  stopped.config.connect_timeout = 10 * kSecond;
  EXPECT_TRUE(stopped.ask().starts_with("closed: ")) << "and nobody else is asked";
  EXPECT_EQ(never.accepted(), 0);
}

}  // namespace
}  // namespace kvferry::redis
