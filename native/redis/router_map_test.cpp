// Router, when the topology changes: nodes come and go. No socket.
// The slots of the keys: a 15495, b 3300.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fuzz/router_driver.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kLongAfter = 60 * kSecond;  // longer than any grace

const std::vector<std::string> kTwo = {"0-8191 one:1", "8192-16383 two:1"};
const std::vector<std::string> kOne = {"0-16383 one:1"};

Config sentinel(ReadFrom read_from = ReadFrom::kPrimary) {
  Config config;
  config.topology = Topology::kSentinel;
  config.endpoint = {"sentinel", 1, {}};
  config.read_from = read_from;
  return config;
}

RouterDriver& with(RouterDriver& driver, const std::vector<std::string>& lines, Nanos now = 0) {
  driver.apply(lines, now);
  return driver;
}

// --- Nodes come and go ---

TEST(RouterMap, ANewNodeIsSeenByWhoeverWatchesTheGeneration) {
  RouterDriver driver;
  std::uint64_t generation = driver.router().generation();
  with(driver, kOne);
  EXPECT_NE(driver.router().generation(), generation);
  generation = driver.router().generation();
  const auto same = driver.node("one:1");
  const int wake_ups = driver.wake_ups();
  with(driver, kOne);
  EXPECT_EQ(driver.router().generation(), generation) << "nothing has changed";
  EXPECT_EQ(driver.wake_ups(), wake_ups) << "so nobody is woken";
  EXPECT_EQ(driver.node("one:1"), same);
  with(driver, kTwo);
  EXPECT_NE(driver.router().generation(), generation);
  EXPECT_EQ(driver.nodes(), "one:1 two:1");
  EXPECT_EQ(driver.node("one:1"), same) << "its connections live on";
  EXPECT_NE(driver.router().nodes()[0].ordinal, driver.router().nodes()[1].ordinal);
}

TEST(RouterMap, ANodeThatLeftHasAGrace) {
  RouterDriver driver;
  with(driver, kTwo);
  const auto two = driver.node("two:1");
  const auto batch = driver.submit(Verb::kGet, {"a", "b"});
  with(driver, kOne, kSecond);
  EXPECT_EQ(driver.nodes(), "one:1 two:1") << "a redirect may still name it";
  EXPECT_FALSE(two->retired());
  EXPECT_EQ(driver.router().waiting(), 2u);
  driver.submit(Verb::kGet, {"a2{a}"});
  with(driver, kOne, kLongAfter);
  EXPECT_EQ(driver.nodes(), "one:1");
  EXPECT_TRUE(two->retired());
  EXPECT_EQ(driver.take(), "one:1=a b a2{a}") << "its work has been routed again";
  EXPECT_EQ(statuses(*batch), "PENDING PENDING");
}

TEST(RouterMap, ANodeThatReturnsInTimeIsTheSame) {
  RouterDriver driver;
  with(driver, kTwo);
  const auto two = driver.node("two:1");
  with(driver, kOne, kSecond);
  with(driver, kTwo, 2 * kSecond);
  with(driver, kOne, kLongAfter);
  EXPECT_EQ(driver.node("two:1"), two) << "its grace began anew";
  EXPECT_FALSE(two->retired());
  with(driver, kOne, 2 * kLongAfter);
  with(driver, kTwo, 2 * kLongAfter);
  EXPECT_NE(driver.node("two:1"), two);
}

TEST(RouterMap, WhatAConnectionGivesBackToARetiredNodeGoesElsewhere) {
  RouterDriver driver;
  with(driver, kTwo);
  const auto batch = driver.submit(Verb::kGet, {"a"});
  ASSERT_EQ(driver.take(), "two:1=a");
  const auto two = driver.node("two:1");  // as its connection holds it
  const Work in_flight = driver.work("a");
  with(driver, kOne, 0);
  with(driver, kOne, kLongAfter);
  ASSERT_TRUE(two->retired());
  two->put_back(in_flight);
  EXPECT_EQ(driver.take(), "one:1=a");
  two->settle(driver.work("a"), Status::kOk, {});
  EXPECT_TRUE(batch->finished()) << "an answer that was on its way counts all the same";
}

TEST(RouterMap, CountersOfNodesThatAreGoneAreKept) {
  RouterDriver driver;
  with(driver, kTwo);
  Stats& stats = driver.node("two:1")->stats();
  stats.bytes_received = 1;
  stats.bytes_sent = 2;
  stats.content_received = 9;
  stats.commands_settled = 3;
  stats.commands_retried = 4;
  stats.connections_opened = 5;
  stats.connections_lost = 6;
  stats.dials_failed = 7;
  stats.values_corrupt = 8;
  stats.receives = 10;
  stats.sends = 11;
  const Stats& former = driver.router().former();
  with(driver, kOne);
  EXPECT_EQ(former.bytes_sent.load(), 0u) << "it is still there";
  with(driver, kOne, kLongAfter);
  EXPECT_EQ(former.bytes_sent.load(), 2u);
  EXPECT_EQ(former.bytes_received.load(), 1u);
  EXPECT_EQ(former.content_received.load(), 9u);
  EXPECT_EQ(former.commands_settled.load(), 3u);
  EXPECT_EQ(former.commands_retried.load(), 4u);
  EXPECT_EQ(former.connections_opened.load(), 5u);
  EXPECT_EQ(former.connections_lost.load(), 6u);
  EXPECT_EQ(former.dials_failed.load(), 7u);
  EXPECT_EQ(former.values_corrupt.load(), 8u);
  EXPECT_EQ(former.receives.load(), 10u);
  EXPECT_EQ(former.sends.load(), 11u);
  with(driver, kOne, 3 * kLongAfter);
  EXPECT_EQ(former.bytes_received.load(), 1u) << "counted once";
}

TEST(RouterMap, AReplicaThatIsPromotedIsAnotherNode) {
  RouterDriver driver(RouterDriver::cluster(ReadFrom::kReplica));
  with(driver, {"0-16383 one:1 two:1"});
  EXPECT_EQ(driver.nodes(), "one:1 two:1(replica)");
  driver.up("two:1(replica)");
  driver.submit(Verb::kGet, {"a"});
  with(driver, {"0-16383 two:1 one:1"});
  with(driver, {"0-16383 two:1 one:1"}, kLongAfter);
  EXPECT_EQ(driver.nodes(), "one:1(replica) two:1") << "its connections said READONLY";
  EXPECT_EQ(driver.take(), "two:1=a");
}

TEST(RouterMap, AMapOfTooManyNodesIsRefused) {
  Config config = RouterDriver::cluster(ReadFrom::kReplica);
  config.nodes_max = 3;
  RouterDriver driver(config);
  with(driver, {"0-8191 one:1 one:2", "8192-16383 two:1"});
  const Outcome refused = driver.router().apply(
      scripted_map({"0-8191 three:1 three:2", "8192-16383 four:1 four:2"}), kLongAfter);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kCapacity);
  EXPECT_EQ(driver.nodes(), "one:1 one:2(replica) two:1") << "the earlier map stays";
  driver.submit(Verb::kSet, {"a", "b"});
  EXPECT_EQ(driver.take(), "one:1=b two:1=a");
}

// --- Sentinel ---

TEST(RouterSentinel, AMasterThatWasReplacedSeesNothingMore) {
  RouterDriver driver(sentinel());
  const auto early = driver.submit(Verb::kSet, {"a"});
  with(driver, kOne);
  EXPECT_EQ(driver.take(), "one:1=a");
  driver.settle("a", Status::kOk);
  const auto old_master = driver.node("one:1");
  const auto batch = driver.submit(Verb::kSet, {"a", "b"});
  with(driver, {"0-16383 two:1"}, 1);
  EXPECT_TRUE(old_master->retired()) << "without a grace";
  EXPECT_EQ(driver.nodes(), "two:1");
  EXPECT_EQ(driver.take(), "two:1=a b");
  EXPECT_EQ(driver.router().former().commands_settled.load(), 1u);
  EXPECT_EQ(statuses(*early), "OK");
}

TEST(RouterSentinel, ReadsMayGoToItsReplicas) {
  RouterDriver driver(sentinel(ReadFrom::kReplica));
  with(driver, {"0-16383 one:1 one:2"});
  driver.up("one:2(replica)");
  driver.submit(Verb::kGet, {"a", "b"});
  EXPECT_EQ(driver.take(), "one:2(replica)=a b");
  driver.submit(Verb::kSet, {"a", "b"});
  EXPECT_EQ(driver.take(), "one:1=a b");
}

TEST(RouterSentinel, AMasterThatComesBackIsANewNode) {
  RouterDriver driver(sentinel());
  with(driver, kOne);
  const auto before = driver.node("one:1");
  with(driver, {"0-16383 two:1"});
  with(driver, kOne);
  EXPECT_EQ(driver.nodes(), "one:1");
  EXPECT_NE(driver.node("one:1"), before);
  EXPECT_FALSE(driver.node("one:1")->retired());
}

}  // namespace
}  // namespace kvferry::redis
