// MapRefresh without a thread, on a clock that is a number.
#include "redis/cluster/map_refresh.hpp"

#include <gtest/gtest.h>

#include <string>

#include "fuzz/router_driver.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kStart = 1000 * kSecond;

struct Refreshed {
  explicit Refreshed(Config config = RouterDriver::cluster())
      : driver(std::move(config)), refresh(driver.config(), driver.router(), driver.log()) {}

  // What is asked now: "one:1 two:1, troubled", or "nothing".
  std::string asks(bool suspected, Nanos now) {
    question = refresh.step(suspected, now);
    if (!question) return "nothing";
    std::string text;
    for (const net::Endpoint& endpoint : question->known) {
      text += (text.empty() ? "" : " ") + endpoint.text();
    }
    return question->troubled ? text + ", troubled" : text;
  }
  // The answer to it, and how long it is trusted.
  Nanos answer(const Result<SlotMap>& map, Nanos now) {
    refresh.answer(*question, map, now);
    return refresh.next() - now;
  }

  RouterDriver driver;
  MapRefresh refresh;
  std::optional<MapRefresh::Question> question;
};

Result<SlotMap> one_node() { return scripted_map({"0-16383 one:1"}); }

TEST(MapRefresh, AsksAtOnceAndThenNowAndThen) {
  Refreshed one;
  const Nanos usual = one.driver.config().topology_refresh;
  EXPECT_EQ(one.asks(false, kStart), "");
  const Nanos trusted = one.answer(one_node(), kStart);
  EXPECT_LE(trusted, usual);
  EXPECT_GE(trusted, usual * 8 / 10) << "clients that began together part";
  EXPECT_EQ(one.asks(false, kStart + trusted - 1), "nothing");
  EXPECT_EQ(one.asks(false, kStart + trusted), "one:1");
}

TEST(MapRefresh, ASuspicionIsFollowedSoonButNotTwiceInAMoment) {
  Refreshed one;
  one.asks(false, kStart);
  one.answer(one_node(), kStart);
  EXPECT_EQ(one.asks(true, kStart + 1), "nothing");
  EXPECT_EQ(one.refresh.next(), kStart + MapRefresh::kGapMin);
  EXPECT_EQ(one.asks(false, kStart + MapRefresh::kGapMin), "one:1") << "it was not forgotten";
  EXPECT_GT(one.answer(one_node(), kStart + MapRefresh::kGapMin), MapRefresh::kGapMin);
}

TEST(MapRefresh, ASentinelIsAskedOften) {
  Config config;
  config.topology = Topology::kSentinel;
  Refreshed one(config);
  one.asks(false, kStart);
  EXPECT_LE(one.answer(one_node(), kStart), MapRefresh::kSentinelPoll);
}

TEST(MapRefresh, WhatCannotBeKnownIsAskedLessAndLessOften) {
  Refreshed one;
  const auto batch = one.driver.submit(Verb::kGet, {"a"});
  Nanos now = kStart;
  for (const Nanos delay : {100, 200, 400, 800, 1000, 1000}) {
    EXPECT_EQ(one.asks(false, now), "");
    EXPECT_EQ(one.answer(Error{Errc::kConnect, "refused"}, now), delay * kMilli);
    now += delay * kMilli;
  }
  EXPECT_EQ(statuses(*batch), "UNAVAILABLE");
  EXPECT_EQ(batch->error().text, "refused");
}

TEST(MapRefresh, TheSameProblemIsLoggedOnce) {
  Refreshed one;
  Nanos now = kStart;
  for (const char* problem : {"refused", "refused", "no route", "no route"}) {
    one.asks(false, now);
    now += one.answer(Error{Errc::kConnect, problem}, now);
  }
  one.asks(false, now);
  one.answer(one_node(), now);
  std::string lines;
  std::uint64_t dropped = 0;
  for (const LogLine& line : one.driver.log().drain(dropped)) {
    if (line.text.starts_with("the topology")) lines += line.text + "\n";
  }
  EXPECT_EQ(lines,
            "the topology is not known: refused\n"
            "the topology is not known: no route\n");
}

TEST(MapRefresh, SaysWhichNodesAreWellAndWhetherOneIsLost) {
  Refreshed one;
  one.asks(false, kStart);
  one.answer(scripted_map({"0-8191 one:1", "8192-16383 two:1"}), kStart);
  EXPECT_EQ(one.asks(true, kStart + kSecond), "one:1 two:1");
  one.answer(scripted_map({"0-8191 one:1", "8192-16383 two:1"}), kStart + kSecond);
  one.driver.down("two:1");
  EXPECT_EQ(one.asks(true, kStart + 2 * kSecond), "one:1, troubled");
  EXPECT_EQ(one.answer(scripted_map({"0-8191 one:1", "8192-16383 two:1"}), kStart + 2 * kSecond),
            MapRefresh::kTroubledMin)
      << "and it goes on asking by itself";
  one.driver.up("two:1");
  EXPECT_EQ(one.asks(false, kStart + 3 * kSecond), "one:1 two:1");
}

TEST(MapRefresh, ALostReplicaIsNoTrouble) {
  Refreshed one(RouterDriver::cluster(ReadFrom::kReplica));
  one.asks(false, kStart);
  one.answer(scripted_map({"0-16383 one:1 one:2"}), kStart);
  one.driver.down("one:2(replica)");
  EXPECT_EQ(one.asks(true, kStart + kSecond), "one:1");
}

TEST(MapRefresh, AMapOfTooManyNodesIsAProblem) {
  Config config = RouterDriver::cluster();
  config.nodes_max = 1;
  Refreshed one(config);
  one.asks(false, kStart);
  one.answer(one_node(), kStart);
  one.asks(true, kStart + kSecond);
  EXPECT_EQ(one.answer(scripted_map({"0-1 one:1", "2-3 two:1"}), kStart + kSecond),
            MapRefresh::kTroubledMin)
      << "not the usual time, and not at once";
  EXPECT_EQ(one.driver.nodes(), "one:1");
}

TEST(MapRefresh, SendsOnWhatWasParked) {
  Refreshed one;
  one.asks(false, kStart);
  one.answer(one_node(), kStart);
  one.driver.submit(Verb::kGet, {"a"});
  EXPECT_EQ(one.driver.take(), "one:1=a");
  one.driver.redirect("a", "TRYAGAIN", kStart + 1);
  EXPECT_EQ(one.asks(false, kStart + 1), "nothing");
  const Nanos due = one.refresh.next();
  EXPECT_LT(due, kStart + kSecond) << "sooner than the next question";
  EXPECT_EQ(one.asks(false, due), "nothing");
  EXPECT_EQ(one.driver.take(), "one:1=a");
}

}  // namespace
}  // namespace kvferry::redis
