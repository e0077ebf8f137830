// How far away a client takes its server to be, and what it sends it then.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/client_driver.hpp"
#include "fuzz/router_driver.hpp"
#include "fuzz/scripted_server.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kSlow = 200 * kMilli;

Server& only_node(Client& client) { return *client.router().nodes().at(0).server; }

// A server that takes so long to answer this command.
ScriptedServer::Script slow_at(std::string_view name, Nanos took) {
  return [=](ScriptedServer::Peer&, const ScriptedServer::Command& command) {
    if (command[0] == name) std::this_thread::sleep_for(std::chrono::nanoseconds(took));
    return false;
  };
}

// Patient, with one connection for values, and without PINGs of the usual kind.
Config patient(const ScriptedServer& server) {
  Config config = client_config(server.port());
  config.connect_timeout = config.stall_timeout = kPatience;
  config.ping_interval = 10 * kPatience;
  config.connections = 1;
  return config;
}

TEST(ClientDistance, AServerThatMovesAwayIsAskedForWhatARoundTripCarries) {
  std::atomic<Nanos> away{0};
  ScriptedServer server([&](ScriptedServer::Peer&, const ScriptedServer::Command& command) {
    if (command[0] == "TOUCH") std::this_thread::sleep_for(std::chrono::nanoseconds(away));
    return false;
  });
  Config config = client_config(server.port());
  config.connections = StreamGate::kStreamsNearMax;
  const auto client = open(config);
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"k"})), "MISS");
  Server& node = only_node(*client);
  const Nanos near = node.round_trip();
  EXPECT_GT(near, 0);
  away = std::max(10 * kMilli, 3 * near);
  // Other connections may still be greeted, which was before it moved.
  for (Nanos until = monotonic_ns() + kPatience;
       node.round_trip() < away && monotonic_ns() < until;) {
    EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"k"})), "MISS");
  }
  EXPECT_GE(node.round_trip(), away.load());
  EXPECT_EQ(node.gate().limit(Direction::kRead), StreamGate::kStreamsNearMax);
}

TEST(ClientDistance, ASlowGreetingIsForgottenWhereValuesAreAnsweredSooner) {
  ScriptedServer server(slow_at("HELLO", kSlow));
  const auto client = open(patient(server));
  std::vector<std::string> values{std::string(64 * kKiB, 'v')};
  const auto writes = [&] { return run(*client, make_batch(Verb::kSet, {"k"}, &values)); };
  EXPECT_EQ(writes(), "OK");
  Server& node = only_node(*client);
  for (const Nanos until = monotonic_ns() + kPatience;
       node.round_trip() >= kSlow && monotonic_ns() < until;) {
    EXPECT_EQ(writes(), "OK");
  }
  EXPECT_LT(node.round_trip(), kSlow);
}

TEST(ClientDistance, WhereOnlyGreetingsAreSlowTheServerIsAskedOnceItIsIdle) {
  ScriptedServer server(slow_at("HELLO", kSlow));
  const auto client = open(patient(server));
  Server& node = only_node(*client);
  const Nanos until = monotonic_ns() + kPatience;
  while ((node.round_trip() == 0 || node.unmeasured()) && monotonic_ns() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GT(node.round_trip(), 0);
  EXPECT_LT(node.round_trip(), kSlow);
}

TEST(ClientDistance, AServerThatIsFarAwayIsAskedAFewTimesAndNoMore) {
  std::atomic<int> asked{0};
  ScriptedServer server([&](ScriptedServer::Peer&, const ScriptedServer::Command& command) {
    if (command[0] == "PING") ++asked;
    std::this_thread::sleep_for(std::chrono::nanoseconds(2 * kFarAway));
    return false;
  });
  const auto client = open(patient(server));
  Server& node = only_node(*client);
  const Nanos until = monotonic_ns() + kPatience;
  while ((node.round_trip() == 0 || node.unmeasured()) && monotonic_ns() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(node.unmeasured());
  EXPECT_GE(node.round_trip(), kFarAway);
  EXPECT_EQ(asked, 4);
}

// What a node is told by connections that a test only pretends to have.
struct ToldNode {
  void answer_times(int count, Nanos took) {
    for (int n = 0; n < count; ++n) server.note_round_trip(took, false);
  }

  RouterDriver driver{[] {
    Config config;
    config.endpoint = {"one", 1, {}};
    config.connections = 2;
    return config;
  }()};
  Server& server = *driver.router().nodes().front().server;
};

TEST(ClientDistance, AnswersBesideValuesDoNotSayHowFarItIs) {
  // Greetings were slow, and Redis 7 copied 4 MiB for a millisecond before each answer: it stayed
  // far, and each stream asked for 20 MB at once.
  ToldNode one;
  one.server.note_greeting(10 * kMilli);
  ASSERT_TRUE(one.server.gate().try_enter(Direction::kRead, 1));
  one.answer_times(100, 2 * kFarAway);
  EXPECT_TRUE(one.server.unmeasured());
  one.server.gate().leave(Direction::kRead, 2);
  one.answer_times(3, 2 * kFarAway);
  EXPECT_TRUE(one.server.unmeasured());
  one.answer_times(1, 2 * kFarAway);
  EXPECT_FALSE(one.server.unmeasured());
}

TEST(ClientDistance, AServerThatIsBusyWithValuesHasNotMovedAway) {
  // GETs of 4 MiB beside each other waited 5 ms on a busy machine.
  ToldNode one;
  one.answer_times(1, kFarAway / 10);
  for (int n = 0; n < 2; ++n) {
    ASSERT_TRUE(one.server.gate().try_enter(Direction::kRead, 1));
    (void)one.server.gate().completed(Direction::kRead, 4 * kMiB, 2);
  }
  one.answer_times(100, 2 * RoundTrip::kLong);
  EXPECT_EQ(one.server.round_trip(), kFarAway / 10);
  one.answer_times(RoundTrip::kInARow, 20 * kMilli);
  EXPECT_EQ(one.server.round_trip(), 20 * kMilli) << "more than the values explain";
}

TEST(ClientDistance, AServerThatSeemsToHaveMovedAwayIsAskedAgain) {
  ToldNode one;
  one.server.note_greeting(kMilli);
  one.answer_times(4, kMilli);
  EXPECT_FALSE(one.server.unmeasured());
  const int before = one.driver.wake_ups();
  one.answer_times(RoundTrip::kInARow, 10 * kMilli);
  EXPECT_EQ(one.server.round_trip(), 10 * kMilli);
  EXPECT_TRUE(one.server.unmeasured());
  EXPECT_GT(one.driver.wake_ups(), before) << "who asks has to know";
  one.answer_times(1, kFarAway / 10);
  EXPECT_EQ(one.server.round_trip(), kFarAway / 10);
}

}  // namespace
}  // namespace kvferry::redis
