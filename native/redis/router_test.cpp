// Router: where commands go, without a socket. The slots of the keys: a 15495, b 3300, c 7365.
#include "redis/router.hpp"
#include "base/test_names.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fuzz/router_driver.hpp"

namespace kvferry::redis {
namespace {

const std::vector<std::string> kThree = {"0-5460 one:1", "5461-10922 two:1", "10923-16383 three:1"};
const std::vector<std::string> kWithReplicas = {"0-8191 one:1 one:2 one:3", "8192-16383 two:1"};

Config standalone() {
  Config config;
  config.endpoint = {"only", 1, {}};
  return config;
}

TEST(Router, AStandaloneServerHasEveryKey) {
  RouterDriver driver(standalone());
  EXPECT_EQ(driver.nodes(), "only:1") << "it needs no map";
  const auto batch = driver.submit(Verb::kGet, {"a", "b", "c"});
  EXPECT_EQ(driver.router().waiting(), 3u);
  EXPECT_EQ(driver.take(), "only:1=a b c");
  for (const char* key : {"a", "b", "c"}) driver.settle(key, Status::kOk);
  EXPECT_TRUE(batch->finished());
}

TEST(Router, ABatchIsSpreadOverTheNodesOfItsKeys) {
  RouterDriver driver;
  driver.apply(kThree);
  const auto batch = driver.submit(Verb::kGet, {"a", "b", "c", "x{a}", "x{b}", "{c}y"});
  EXPECT_EQ(driver.take(), "one:1=b x{b} three:1=a x{a} two:1=c {c}y");
  for (const char* key : {"a", "b", "c", "x{a}", "x{b}"}) driver.settle(key, Status::kOk);
  EXPECT_FALSE(batch->finished());
  driver.settle("{c}y", Status::kMiss);
  EXPECT_TRUE(batch->finished());
  EXPECT_EQ(statuses(*batch), "OK OK OK OK OK MISS");
  EXPECT_EQ(driver.suspicions(), 0);
}

TEST(Router, AKeyWhoseSlotNobodyServesIsUnavailable) {
  RouterDriver driver;
  driver.apply({"0-5460 one:1", "10923-16383 three:1"});
  const auto batch = driver.submit(Verb::kGet, {"a", "b", "c"});
  EXPECT_EQ(statuses(*batch), "PENDING PENDING UNAVAILABLE");
  EXPECT_NE(batch->error().text.find("no node of the cluster"), std::string::npos);
  EXPECT_GT(driver.suspicions(), 0) << "the next map may know more";
  EXPECT_EQ(driver.take(), "one:1=b three:1=a");
  const auto nowhere = driver.submit(Verb::kDelete, {"c"});
  EXPECT_TRUE(nowhere->finished()) << "although no node had a part of it";
  driver.apply({});
  EXPECT_EQ(statuses(*driver.submit(Verb::kTouch, {"a", "b"})), "UNAVAILABLE UNAVAILABLE");
}

TEST(Router, WorkWaitsForTheFirstMap) {
  RouterDriver driver;
  EXPECT_EQ(driver.nodes(), "");
  EXPECT_TRUE(driver.router().available()) << "a client that has not asked yet may hope";
  const auto reads = driver.submit(Verb::kGet, {"a", "b", "c", "b2{b}"});
  const auto writes = driver.submit(Verb::kSet, {"w{b}"});
  EXPECT_EQ(driver.router().waiting(), 5u);
  EXPECT_EQ(driver.take(), "");
  driver.apply(kThree);
  EXPECT_EQ(driver.take(), "one:1=b b2{b} w{b} three:1=a two:1=c");
  EXPECT_EQ(driver.router().waiting(), 0u);
  EXPECT_EQ(statuses(*reads), "PENDING PENDING PENDING PENDING");
}

TEST(Router, TheLobbyRefusesWhenNobodyKnowsTheNodes) {
  RouterDriver driver;
  const auto early = driver.submit(Verb::kGet, {"a", "b"});
  for (int tries = 1; tries < Breaker::kFailuresToOpen; ++tries) {
    driver.router().no_topology({Errc::kConnect, "seed:1: connection refused"});
  }
  EXPECT_EQ(statuses(*early), "PENDING PENDING") << "one refusal may be a restart";
  driver.router().no_topology({Errc::kConnect, "seed:1: connection refused"});
  EXPECT_EQ(statuses(*early), "UNAVAILABLE UNAVAILABLE");
  EXPECT_EQ(early->error().text, "seed:1: connection refused");
  EXPECT_FALSE(driver.router().available());
  EXPECT_EQ(driver.router().down_reason(), "seed:1: connection refused");
  EXPECT_TRUE(driver.submit(Verb::kSet, {"a"})->finished()) << "from now on at once";
  driver.apply(kThree);
  EXPECT_TRUE(driver.router().available());
  driver.submit(Verb::kSet, {"a"});
  EXPECT_EQ(driver.take(), "three:1=a");
}

TEST(Router, SilenceAndCredentialsCloseTheLobbyAtOnce) {
  for (const Errc code : {Errc::kTimeout, Errc::kAuth, Errc::kCertificate}) {
    RouterDriver driver;
    const auto batch = driver.submit(Verb::kGet, {"a"});
    driver.router().no_topology({code, "why"});
    EXPECT_EQ(statuses(*batch), "UNAVAILABLE");
  }
}

TEST(Router, WithAMapALookThatFailsChangesNothing) {
  RouterDriver driver;
  driver.apply(kThree);
  const auto batch = driver.submit(Verb::kGet, {"a"});
  for (int i = 0; i < 10; ++i) driver.router().no_topology({Errc::kTimeout, "no answer"});
  EXPECT_TRUE(driver.router().available());
  EXPECT_EQ(driver.take(), "three:1=a");
}

TEST(Router, ABatchThatDoesNotFitIsRefusedWhole) {
  Config config = RouterDriver::cluster();
  config.queued_commands_max = 4;
  RouterDriver driver(config);
  EXPECT_FALSE(driver.router().submit(driver.batch(Verb::kGet, {"a", "b", "c", "d", "e"})));
  EXPECT_EQ(driver.router().waiting(), 0u) << "what waits for a map has the same limit";
  driver.apply(kThree);
  driver.submit(Verb::kGet, {"a", "b", "c"});
  const Outcome full = driver.router().submit(driver.batch(Verb::kGet, {"a", "b"}));
  ASSERT_FALSE(full) << "it counts the queues of all nodes";
  EXPECT_EQ(full.error().code, Errc::kCapacity);
  EXPECT_EQ(driver.router().waiting(), 3u);
  driver.submit(Verb::kSet, {"d"});
  EXPECT_EQ(driver.take(), "one:1=b three:1=a d two:1=c");
}

TEST(Router, ANodeThatIsDownRefusesItsPartAtOnce) {
  RouterDriver driver;
  driver.apply(kThree);
  const auto before = driver.submit(Verb::kGet, {"a", "b", "c"});
  driver.down("two:1");
  EXPECT_EQ(statuses(*before), "PENDING PENDING UNAVAILABLE");
  const int suspicions = driver.suspicions();
  EXPECT_GT(suspicions, 0);
  const auto after = driver.submit(Verb::kGet, {"a", "b", "c"});
  EXPECT_EQ(statuses(*after), "PENDING PENDING UNAVAILABLE");
  EXPECT_EQ(after->error().text, "no answer");
  EXPECT_GT(driver.suspicions(), suspicions) << "somebody may have taken its place";
  EXPECT_TRUE(driver.router().available()) << "the others serve";
  EXPECT_EQ(driver.router().down_reason(), "no answer");
  driver.down("one:1");
  driver.down("three:1");
  EXPECT_FALSE(driver.router().available());
}

TEST(Router, SweepsEveryQueue) {
  RouterDriver driver;
  const auto early = driver.submit(Verb::kGet, {"a"}, 100);
  driver.router().sweep(99);
  EXPECT_EQ(statuses(*early), "PENDING");
  driver.router().sweep(100);
  EXPECT_EQ(statuses(*early), "TIMEOUT");
  driver.apply(kThree);
  const auto expiring = driver.submit(Verb::kGet, {"a", "b"}, 200);
  const auto cancelled = driver.submit(Verb::kSet, {"b", "c"});
  const auto lasting = driver.submit(Verb::kTouch, {"c"});
  cancelled->cancel();
  driver.router().sweep(200);
  EXPECT_EQ(statuses(*expiring), "TIMEOUT TIMEOUT");
  EXPECT_EQ(statuses(*cancelled), "CANCELLED CANCELLED");
  EXPECT_EQ(driver.router().waiting(), 1u);
  driver.router().refuse_all(Status::kCancelled, "closed");
  EXPECT_EQ(statuses(*lasting), "CANCELLED");
}

TEST(Router, FailingForGoodReachesEveryNode) {
  RouterDriver driver;
  driver.apply(kThree);
  const auto waiting = driver.submit(Verb::kGet, {"a", "b"});
  driver.router().fail_for_good("a defect");
  EXPECT_EQ(statuses(*waiting), "UNAVAILABLE UNAVAILABLE");
  driver.up("one:1");
  EXPECT_EQ(statuses(*driver.submit(Verb::kGet, {"b"})), "UNAVAILABLE") << "for good";
  EXPECT_FALSE(driver.router().available());
}

// --- Replicas ---

TEST(RouterReplicas, AreNoNodesUnlessReadsMayGoThere) {
  RouterDriver driver;
  driver.apply(kWithReplicas);
  EXPECT_EQ(driver.nodes(), "one:1 two:1");
}

TEST(RouterReplicas, ReadsGoInTurnToThoseThatAreUp) {
  RouterDriver driver(RouterDriver::cluster(ReadFrom::kReplica));
  driver.apply(kWithReplicas);
  EXPECT_EQ(driver.nodes(), "one:1 one:2(replica) one:3(replica) two:1");
  driver.submit(Verb::kGet, {"b"});
  EXPECT_EQ(driver.take(), "one:1=b") << "no replica has a connection yet";
  driver.up("one:3(replica)");
  driver.submit(Verb::kGet, {"b", "b2{b}", "a"});
  EXPECT_EQ(driver.take(), "one:3(replica)=b b2{b} two:1=a") << "two:1 has no replica";
  driver.up("one:2(replica)");
  driver.submit(Verb::kExists, {"b", "b2{b}", "b3{b}", "b4{b}"});
  const std::string taken = driver.take();
  for (const char* name : {"one:2(replica)=", "one:3(replica)="}) {
    EXPECT_NE(taken.find(name), std::string::npos) << taken;
  }
  EXPECT_EQ(taken.find("one:1"), std::string::npos) << taken;
  driver.node("one:3(replica)")->on_lost(true, true, "silent", 0);
  driver.submit(Verb::kGet, {"b", "b2{b}"});
  EXPECT_EQ(driver.take(), "one:2(replica)=b b2{b}");
}

TEST(RouterReplicas, WritesAndTouchesGoToThePrimary) {
  RouterDriver driver(RouterDriver::cluster(ReadFrom::kReplica));
  driver.apply(kWithReplicas);
  driver.up("one:2(replica)");
  driver.up("one:3(replica)");
  for (const Verb verb : {Verb::kSet, Verb::kDelete, Verb::kTouch}) {
    driver.submit(verb, {"b"});
    EXPECT_EQ(driver.take(), "one:1=b");
  }
}

TEST(RouterReplicas, WhatAReplicaCannotAnswerGoesToItsPrimary) {
  for (const Status status : {Status::kMiss, Status::kUnavailable}) {
    RouterDriver driver(RouterDriver::cluster(ReadFrom::kReplica));
    driver.apply(kWithReplicas);
    driver.up("one:2(replica)");
    const auto batch = driver.submit(Verb::kGet, {"b"});
    ASSERT_EQ(driver.take(), "one:2(replica)=b");
    driver.work("b").command->attempts = 2;
    driver.settle("b", status);
    EXPECT_EQ(statuses(*batch), "PENDING");
    ASSERT_EQ(driver.take(), "one:1=b");
    EXPECT_EQ(driver.work("b").command->attempts, 0) << "the primary's own tries";
    driver.settle("b", Status::kMiss);
    EXPECT_EQ(statuses(*batch), "MISS") << "the primary has the last word";
  }
}

TEST(RouterReplicas, OtherAnswersOfAReplicaCount) {
  for (const Status status : {Status::kOk, Status::kTimeout, Status::kCancelled, Status::kCorrupt,
                              Status::kSizeMismatch, Status::kServerError}) {
    RouterDriver driver(RouterDriver::cluster(ReadFrom::kReplica));
    driver.apply(kWithReplicas);
    driver.up("one:2(replica)");
    const auto batch = driver.submit(Verb::kGet, {"b"});
    ASSERT_EQ(driver.take(), "one:2(replica)=b");
    driver.settle("b", status);
    EXPECT_EQ(statuses(*batch), name(status));
  }
}

TEST(RouterReplicas, AReplicaThatGoesDownHandsItsWorkToThePrimary) {
  RouterDriver driver(RouterDriver::cluster(ReadFrom::kReplica));
  driver.apply(kWithReplicas);
  driver.up("one:2(replica)");
  const auto batch = driver.submit(Verb::kGet, {"b"});
  driver.node("one:2(replica)")->on_lost(true, true, "silent", 0);
  EXPECT_EQ(statuses(*batch), "PENDING");
  EXPECT_EQ(driver.take(), "one:1=b");
  const auto both = driver.submit(Verb::kGet, {"b"});
  driver.down("one:1");
  EXPECT_EQ(statuses(*both), "UNAVAILABLE") << "nobody is left, and nothing goes in circles";
}

TEST(RouterReplicas, TheZoneOfThePrimaryComesFirstThenThatOfAReplica) {
  Config config = RouterDriver::cluster(ReadFrom::kZone);
  config.availability_zone = "here";
  RouterDriver driver(config);
  driver.apply({"0-16383 p:1/far r:1/far r:2/here r:3/far"});
  for (const char* name : {"p:1", "r:1(replica)", "r:3(replica)"}) driver.up(name);
  driver.submit(Verb::kGet, {"a"});
  EXPECT_TRUE(driver.take().starts_with("r:")) << "none here is up: any replica";
  driver.up("r:2(replica)");
  driver.submit(Verb::kGet, {"a", "b", "c", "d"});
  EXPECT_EQ(driver.take(), "r:2(replica)=a b c d");
  driver.node("p:1")->on_up(
      true, ServerInfo{.server = {}, .version = {}, .mode = {}, .role = {}, .zone = "here"});
  driver.submit(Verb::kGet, {"a", "b"});
  EXPECT_EQ(driver.take(), "p:1=a b") << "the server's own word counts, and it is fresher";
  driver.node("p:1")->on_lost(true, true, "silent", 0);
  driver.node("p:1")->on_lost(true, true, "silent", 0);
  driver.submit(Verb::kGet, {"a", "b"});
  EXPECT_EQ(driver.take(), "r:2(replica)=a b");
}

}  // namespace
}  // namespace kvferry::redis
