// The Sentinels' source of maps, over scripted Sentinels and masters.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "base/test_names.hpp"
#include "fuzz/scripted_server.hpp"
#include "redis/cluster/topology_source.hpp"

namespace kvferry::redis {
namespace {

using Peer = ScriptedServer::Peer;
using Words = ScriptedServer::Command;

std::string bulk(const std::string& text) {
  return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
}

std::string list(const std::vector<std::string>& words) {
  std::string text = "*" + std::to_string(words.size()) + "\r\n";
  for (const std::string& word : words) text += bulk(word);
  return text;
}

// Of nodes as "host:port".
std::string rows(const std::vector<std::string>& nodes) {
  std::string text = "*" + std::to_string(nodes.size()) + "\r\n";
  for (const std::string& node : nodes) {
    const std::size_t colon = node.find(':');
    text += list({"ip", node.substr(0, colon), "port", node.substr(colon + 1), "flags", "x"});
  }
  return text;
}

std::string local(std::uint16_t port) { return "127.0.0.1:" + std::to_string(port); }

// A node that says which role it has, in the words of ROLE.
class ScriptedNode {
 public:
  explicit ScriptedNode(std::string role = "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n")
      : role_(std::move(role)), server_([this](Peer& peer, const Words& command) {
          const std::lock_guard lock(mutex_);
          if (command[0] == "HELLO") hello_ = command;
          if (command[0] != "ROLE") return false;
          ++asked_;
          return peer.send(role_);
        }) {}

  [[nodiscard]] std::uint16_t port() const { return server_.port(); }
  void say(std::string role) {
    const std::lock_guard lock(mutex_);
    role_ = std::move(role);
  }
  [[nodiscard]] int asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  [[nodiscard]] Words hello() {
    const std::lock_guard lock(mutex_);
    return hello_;
  }

 private:
  std::mutex mutex_;
  std::string role_;
  int asked_ = 0;
  Words hello_;
  ScriptedServer server_;
};

const std::string kReplicaRole =
    "*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:1\r\n$9\r\nconnected\r\n:0\r\n";

// A Sentinel that watches "mymaster".
class ScriptedSentinel {
 public:
  explicit ScriptedSentinel(std::uint16_t master = 0, int epoch = 0)
      : master_(master),
        epoch_(epoch),
        server_([this](Peer& peer, const Words& command) { return answer(peer, command); }) {}

  void say(std::uint16_t master, int epoch) {
    const std::lock_guard lock(mutex_);
    master_ = master;
    epoch_ = epoch;
  }
  void knows(std::vector<std::string> sentinels, std::vector<std::string> replicas = {}) {
    const std::lock_guard lock(mutex_);
    sentinels_ = std::move(sentinels);
    replicas_ = std::move(replicas);
  }
  // To whoever listens; false when nobody does.
  bool announce() {
    const std::lock_guard lock(mutex_);
    return listener_ != nullptr && listener_->send(">3\r\n" + bulk("message") +
                                                   bulk("+switch-master") + bulk("mymaster ..."));
  }
  [[nodiscard]] std::uint16_t port() const { return server_.port(); }
  [[nodiscard]] int accepted() const { return server_.accepted(); }
  [[nodiscard]] std::vector<Words> heard() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  bool answer(Peer& peer, const Words& command) {
    const std::lock_guard lock(mutex_);
    heard_.push_back(command);
    if (command[0] == "SUBSCRIBE") {
      listener_ = &peer;
      std::string confirmed;
      for (std::size_t i = 1; i < command.size(); ++i) {
        confirmed += ">3\r\n" + bulk("subscribe") + bulk(command[i]) + ":1\r\n";
      }
      return peer.send(confirmed);
    }
    if (command[0] != "SENTINEL") return false;
    const std::string& what = command.at(1);
    if (command.at(2) != "mymaster") {
      const bool address = what == "GET-MASTER-ADDR-BY-NAME";
      return peer.send(address ? "_\r\n" : "-ERR No such master with that name\r\n");
    }
    const std::string port = std::to_string(master_);
    if (what == "GET-MASTER-ADDR-BY-NAME") return peer.send(list({"127.0.0.1", port}));
    if (what == "SENTINELS") return peer.send(rows(sentinels_));
    if (what == "REPLICAS") return peer.send(rows(replicas_));
    return peer.send(list({"name", "mymaster", "ip", "127.0.0.1", "port", port, "config-epoch",
                           std::to_string(epoch_)}));
  }

  std::mutex mutex_;
  std::uint16_t master_;
  int epoch_;
  std::vector<std::string> sentinels_;
  std::vector<std::string> replicas_;
  std::vector<Words> heard_;
  Peer* listener_ = nullptr;
  ScriptedServer server_;
};

std::uint16_t refusing_port() {
  const ScriptedServer gone;
  return gone.port();
}

// A source with these Sentinels.
struct Asking {
  explicit Asking(const std::vector<std::uint16_t>& sentinels) {
    config.topology = Topology::kSentinel;
    config.sentinel_master = "mymaster";
    config.endpoint = {"127.0.0.1", sentinels.at(0), {}};
    for (std::size_t i = 1; i < sentinels.size(); ++i) {
      config.nodes.push_back({"127.0.0.1", sentinels[i], {}});
    }
  }

  // "7001", the master's port, or "7001 7002" with its replicas; or what went wrong.
  std::string ask(bool troubled = false) {
    if (!source) source = sentinel_source(config, {*transport, resolver, nullptr, stop});
    const auto map = source->ask({}, troubled);
    if (!map) return std::string(name(map.error().code)) + ": " + map.error().context;
    EXPECT_EQ(map->covered(), kSlotCount);
    std::string text = std::to_string(map->shards()[0].primary.endpoint.port);
    for (const Node& replica : map->shards()[0].replicas) {
      text += " " + std::to_string(replica.endpoint.port);
    }
    return text;
  }

  Config config;
  EventFd stop = std::move(*EventFd::open());
  net::Resolver resolver;
  std::shared_ptr<net::Transport> transport = net::plain_transport();
  std::unique_ptr<TopologySource> source;
};

TEST(SentinelSource, FindsTheMasterAndBelievesItOnlyOnItsOwnWord) {
  ScriptedNode master;
  ScriptedSentinel sentinel(master.port());
  Asking asking({sentinel.port()});
  EXPECT_EQ(asking.ask(), std::to_string(master.port()));
  EXPECT_EQ(asking.ask(), std::to_string(master.port()));
  EXPECT_EQ(master.asked(), 1) << "while all is well once is enough";
  EXPECT_EQ(sentinel.accepted(), 1) << "and one link";
  EXPECT_EQ(asking.ask(true), std::to_string(master.port()));
  EXPECT_EQ(master.asked(), 2) << "in trouble it is asked again";
}

TEST(SentinelSource, ANodeThatIsAReplicaIsNotTheMasterYet) {
  ScriptedNode node(kReplicaRole);
  ScriptedSentinel sentinel(node.port());
  Asking asking({sentinel.port()});
  const std::string why = asking.ask();
  EXPECT_NE(why.find("127.0.0.1:" + std::to_string(node.port())), std::string::npos) << why;
  EXPECT_NE(why.find("not yet"), std::string::npos) << why;
  node.say("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");  // promoted
  EXPECT_EQ(asking.ask(), std::to_string(node.port()));
}

TEST(SentinelSource, AUserWhoMayNotAskForTheRoleBelievesTheSentinels) {
  ScriptedNode node("-NOPERM this user has no permissions to run the 'role' command\r\n");
  ScriptedSentinel sentinel(node.port());
  EXPECT_EQ(Asking({sentinel.port()}).ask(), std::to_string(node.port()));
}

TEST(SentinelSource, AMasterThatCannotBeReachedIsNone) {
  ScriptedSentinel sentinel(refusing_port());
  Asking asking({sentinel.port()});
  EXPECT_NE(asking.ask().find("refused"), std::string::npos);
  ScriptedServer deaf([](auto&, auto&) { return true; });
  sentinel.say(deaf.port(), 1);
  const Nanos begin = monotonic_ns();
  EXPECT_TRUE(asking.ask().starts_with("timeout: "));
  EXPECT_LT(monotonic_ns() - begin, 5 * kSecond);
}

TEST(SentinelSource, TheHighestEpochCounts) {
  ScriptedNode before;
  ScriptedNode after;
  ScriptedSentinel behind(before.port(), 3);
  ScriptedSentinel ahead(after.port(), 4);
  for (const bool swapped : {false, true}) {
    Asking asking(swapped ? std::vector{ahead.port(), behind.port()}
                          : std::vector{behind.port(), ahead.port()});
    EXPECT_EQ(asking.ask(), std::to_string(after.port()));
  }
  EXPECT_EQ(before.asked(), 0);
}

TEST(SentinelSource, TheLeaderOfAFailoverIsBelievedBeforeTheEpochChanges) {
  ScriptedNode before;
  ScriptedNode after;
  ScriptedSentinel leader(before.port(), 3);
  ScriptedSentinel other(before.port(), 3);
  for (const bool swapped : {false, true}) {
    leader.say(before.port(), 3);
    Asking asking(swapped ? std::vector{leader.port(), other.port()}
                          : std::vector{other.port(), leader.port()});
    EXPECT_EQ(asking.ask(), std::to_string(before.port()));
    leader.say(after.port(), 3);
    EXPECT_EQ(asking.ask(), std::to_string(after.port()));
  }
}

TEST(SentinelSource, DeadAndDeafSentinelsAreSteppedOver) {
  ScriptedNode master;
  ScriptedSentinel sentinel(master.port());
  ScriptedServer deaf([](auto&, auto&) { return true; });
  Asking asking({refusing_port(), deaf.port(), sentinel.port()});
  const Nanos begin = monotonic_ns();
  EXPECT_EQ(asking.ask(), std::to_string(master.port()));
  EXPECT_LT(monotonic_ns() - begin, 5 * kSecond);
}

TEST(SentinelSource, OneThatDidNotAnswerIsLeftInPeaceForAWhile) {
  ScriptedNode master;
  ScriptedSentinel sentinel(master.port());
  ScriptedServer rude([](ScriptedServer::Peer& peer, auto&) {
    peer.hang_up();
    return true;
  });
  Asking asking({rude.port(), sentinel.port()});
  const Nanos begin = monotonic_ns();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(asking.ask(), std::to_string(master.port()));
  const bool quick = monotonic_ns() - begin < kSecond;
  EXPECT_TRUE(!quick || rude.accepted() == 1) << rude.accepted();
}

TEST(SentinelSource, ANameThatNobodyKnowsIsSaid) {
  ScriptedNode master;
  ScriptedSentinel sentinel(master.port());
  Asking asking({sentinel.port()});
  asking.config.sentinel_master = "other";
  EXPECT_EQ(asking.ask(), "server: 127.0.0.1:" + std::to_string(sentinel.port()) +
                              ": ERR No such master with that name");
}

TEST(SentinelSource, ASentinelThatKnowsTheNameIsFoundBehindOneThatDoesNot) {
  ScriptedNode master;
  ScriptedServer ignorant([](Peer& peer, const Words& command) {
    return command[0] == "SENTINEL" && peer.send("-ERR No such master with that name\r\n");
  });
  ScriptedSentinel sentinel(master.port());
  EXPECT_EQ(Asking({ignorant.port(), sentinel.port()}).ask(), std::to_string(master.port()));
}

TEST(SentinelSource, LearnsOfTheOtherSentinels) {
  ScriptedNode master;
  ScriptedSentinel second(master.port(), 1);
  auto first = std::make_unique<ScriptedSentinel>(master.port(), 1);
  first->knows({local(second.port()), local(refusing_port())});
  Asking asking({first->port()});
  EXPECT_EQ(asking.ask(), std::to_string(master.port()));
  first.reset();
  EXPECT_EQ(asking.ask(), std::to_string(master.port())) << "the only one that was named is gone";
  EXPECT_EQ(second.accepted(), 1);
}

TEST(SentinelSource, SentinelsThatTellOfEndlessOthersAreNotAllAsked) {
  ScriptedNode master;
  ScriptedSentinel sentinel(master.port());
  const std::string port = ":" + std::to_string(refusing_port());
  std::vector<std::string> others;
  for (int i = 2; i < 102; ++i) others.push_back("127.0.0." + std::to_string(i) + port);
  sentinel.knows(others);
  Asking asking({sentinel.port()});
  const Nanos begin = monotonic_ns();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(asking.ask(), std::to_string(master.port()));
  EXPECT_LT(monotonic_ns() - begin, 8 * kSecond);
}

TEST(SentinelSource, ReplicasAreNamedWhenReadsMayGoThere) {
  ScriptedNode master;
  ScriptedSentinel sentinel(master.port());
  sentinel.knows({}, {local(7001), local(7002)});
  EXPECT_EQ(Asking({sentinel.port()}).ask(), std::to_string(master.port()));
  Asking asking({sentinel.port()});
  asking.config.read_from = ReadFrom::kReplica;
  EXPECT_EQ(asking.ask(), std::to_string(master.port()) + " 7001 7002");
}

TEST(SentinelSource, SentinelsHaveUsersAndNoDatabasesOfTheirOwn) {
  ScriptedNode master;
  ScriptedSentinel sentinel(master.port());
  Asking asking({sentinel.port()});
  asking.config.password = "of-the-data";
  asking.config.database = 3;
  asking.config.sentinel_username = "watcher";
  asking.config.sentinel_password = "of-the-sentinels";
  EXPECT_EQ(asking.ask(), std::to_string(master.port()));
  const auto contains = [](const Words& words, const std::string& word) {
    return std::ranges::find(words, word) != words.end();
  };
  EXPECT_TRUE(contains(master.hello(), "of-the-data"));
  EXPECT_FALSE(contains(master.hello(), "of-the-sentinels"));
  const Words hello = sentinel.heard().at(0);
  EXPECT_TRUE(contains(hello, "watcher") && contains(hello, "of-the-sentinels"));
  for (const Words& command : sentinel.heard()) {
    EXPECT_NE(command[0], "SELECT");
    EXPECT_FALSE(contains(command, "of-the-data"));
  }
}

TEST(SentinelSource, AnnouncementsMakeADescriptorReadable) {
  ScriptedNode master;
  ScriptedNode next;
  ScriptedSentinel sentinel(master.port(), 1);
  Asking asking({sentinel.port()});
  EXPECT_EQ(asking.ask(), std::to_string(master.port()));
  const std::vector<int> fds = asking.source->announcements();
  ASSERT_EQ(fds.size(), 1u);
  pollfd entry{.fd = fds[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << "nothing has happened";
  sentinel.say(next.port(), 2);
  ASSERT_TRUE(sentinel.announce());
  ASSERT_EQ(::poll(&entry, 1, 10'000), 1);
  EXPECT_EQ(asking.ask(), std::to_string(next.port()));
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << "what was announced has been read";
}

TEST(SentinelSource, OneThatAnnouncesWithoutEndIsLeft) {
  const Nanos begin = monotonic_ns();
  ScriptedServer loud([&](Peer& peer, const Words& command) {
    if (command[0] != "SUBSCRIBE") return false;
    std::string pushes;
    for (int i = 0; i < 100; ++i) pushes += ">3\r\n" + bulk("message") + bulk("+x") + bulk("y");
    while (peer.send(pushes) && monotonic_ns() < begin + 15 * kSecond) {
    }
    return true;
  });
  Asking asking({loud.port()});
  EXPECT_TRUE(asking.ask().starts_with("timeout: "));
  EXPECT_LT(monotonic_ns() - begin, 10 * kSecond);
}

TEST(SentinelSource, TheStopSignalEndsIt) {
  Asking stopped({1});  // before the servers, whose threads may still signal at its end
  ScriptedServer deaf([&](auto&, auto&) {
    stopped.stop.signal();
    return true;
  });
  ScriptedSentinel never;
  stopped.config.endpoint.port = deaf.port();
  stopped.config.nodes = {{"127.0.0.1", never.port(), {}}};
  EXPECT_TRUE(stopped.ask().starts_with("closed: "));
  EXPECT_EQ(never.accepted(), 0);
}

}  // namespace
}  // namespace kvferry::redis
