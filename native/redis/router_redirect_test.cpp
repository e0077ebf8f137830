// Router, when a cluster sends commands elsewhere: redirects, and what is parked. No socket.
// The slots of the keys: a 15495, b 3300, d 11298.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fuzz/router_driver.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kLongAfter = 60 * kSecond;  // longer than any grace

const std::vector<std::string> kTwo = {"0-8191 one:1", "8192-16383 two:1"};
const std::vector<std::string> kOne = {"0-16383 one:1"};

RouterDriver& with(RouterDriver& driver, const std::vector<std::string>& lines, Nanos now = 0) {
  driver.apply(lines, now);
  return driver;
}

TEST(RouterRedirect, MovedChangesTheSlotAndNothingElse) {
  RouterDriver driver;
  with(driver, kTwo).submit(Verb::kGet, {"a", "b"});
  driver.take();
  driver.redirect("a", "MOVED 15495 one:1");
  EXPECT_GT(driver.suspicions(), 0) << "more may have moved";
  EXPECT_EQ(driver.take(), "one:1=a");
  EXPECT_FALSE(driver.work("a").command->asking);
  driver.submit(Verb::kGet, {"x{a}", "d"});  // d: slot 11298
  EXPECT_EQ(driver.take(), "one:1=x{a} two:1=d");
  EXPECT_EQ(driver.nodes(), "one:1 two:1");
}

TEST(RouterRedirect, MovedMayNameANodeThatNoMapKnows) {
  RouterDriver driver;
  with(driver, kTwo).submit(Verb::kSet, {"a"});
  driver.take();
  const std::uint64_t generation = driver.router().generation();
  driver.redirect("a", "MOVED 15495 new:9");
  EXPECT_NE(driver.router().generation(), generation) << "it needs connections";
  EXPECT_EQ(driver.take(), "new:9=a");
  with(driver, kTwo, kSecond);
  EXPECT_EQ(driver.nodes(), "new:9 one:1 two:1") << "a map that is behind does not end it at once";
  driver.submit(Verb::kSet, {"a"});
  EXPECT_EQ(driver.take(), "two:1=a") << "and yet the map counts";
}

TEST(RouterRedirect, AnEmptyHostIsTheOneThatAnswered) {
  RouterDriver driver;
  with(driver, {"0-16383 [::1]:7"}).submit(Verb::kGet, {"a"});
  driver.take();
  driver.redirect("a", "MOVED 15495 :8");
  EXPECT_EQ(driver.take(), "[::1]:8=a");
}

TEST(RouterRedirect, AskIsForOneCommandAndLeavesTheMapAlone) {
  RouterDriver driver;
  with(driver, kTwo).submit(Verb::kGet, {"a"});
  driver.take();
  driver.redirect("a", "ASK 15495 one:1");
  EXPECT_EQ(driver.take(), "one:1=a");
  EXPECT_TRUE(driver.work("a").command->asking);
  driver.submit(Verb::kGet, {"x{a}"});
  EXPECT_EQ(driver.take(), "two:1=x{a}");
  EXPECT_FALSE(driver.work("x{a}").command->asking);
}

TEST(RouterRedirect, TryAgainIsTriedLaterWhereTheMapSays) {
  RouterDriver driver;
  const auto batch = with(driver, kTwo).submit(Verb::kGet, {"a"});
  driver.take();
  const int woken = driver.wake_ups();
  driver.redirect("a", "TRYAGAIN Multiple keys request during rehashing of slot", 1000);
  EXPECT_GT(driver.wake_ups(), woken) << "the one that sweeps may be asleep";
  EXPECT_EQ(driver.take(), "");
  EXPECT_EQ(driver.router().waiting(), 1u) << "what is parked counts";
  const Nanos until = driver.router().release_parked(1000);
  EXPECT_GT(until, 1000);
  EXPECT_LT(until, 1000 + kSecond);
  EXPECT_EQ(driver.router().release_parked(until - 1), until);
  EXPECT_EQ(driver.take(), "");
  EXPECT_EQ(driver.router().release_parked(until), kNever);
  EXPECT_EQ(driver.take(), "two:1=a");
  EXPECT_EQ(driver.router().waiting(), 0u);
  driver.settle("a", Status::kOk);
  EXPECT_EQ(statuses(*batch), "OK");
}

TEST(RouterRedirect, ANodeWithoutANameIsFoundByTheNextMap) {
  RouterDriver driver;
  with(driver, kTwo).submit(Verb::kGet, {"a"});
  driver.take();
  driver.redirect("a", "MOVED 15495 ?:6379");
  EXPECT_EQ(driver.take(), "");
  with(driver, kOne);
  driver.router().release_parked(kLongAfter);
  EXPECT_EQ(driver.take(), "one:1=a");
}

TEST(RouterRedirect, TwoNodesThatNameEachOtherAreNotAskedForEver) {
  RouterDriver driver;
  const auto batch = with(driver, kTwo).submit(Verb::kGet, {"a"});
  Nanos now = 0;
  int redirects = 0;
  int waits = 0;
  for (; !batch->finished() && redirects < 100; ++redirects) {
    if (driver.take().empty()) {
      ++waits;
      const Nanos until = driver.router().release_parked(now);
      ASSERT_NE(until, kNever);
      EXPECT_GT(until, now);
      now = until;
      driver.router().release_parked(now);
      ASSERT_NE(driver.take(), "");
    }
    const bool on_one = driver.holder("a").endpoint().host == "one";
    driver.redirect("a", on_one ? "MOVED 15495 two:1" : "MOVED 15495 one:1", now);
  }
  EXPECT_EQ(redirects, Router::kRedirectsMax + 1);
  EXPECT_GT(waits, Router::kRedirectsMax / 2) << "it gives the cluster time to make up its mind";
  EXPECT_LT(now, 10 * kSecond);
  EXPECT_EQ(statuses(*batch), "UNAVAILABLE");
  EXPECT_NE(batch->error().text.find("redirects without end"), std::string::npos);
}

TEST(RouterRedirect, OneThatMakesNoSenseIsAServerError) {
  for (const char* answer :
       {"MOVED", "MOVED 15495", "MOVED 99999 one:1", "MOVED 15495 one", "MOVED 15495 one:0",
        "MOVED 15495 one:70000", "ASK x one:1", "MOVED 15495 bad host:1", "ASKING"}) {
    RouterDriver driver;
    const auto batch = with(driver, kTwo).submit(Verb::kGet, {"a"});
    driver.take();
    driver.redirect("a", answer);
    EXPECT_EQ(statuses(*batch), "SERVER_ERROR") << answer;
    EXPECT_EQ(driver.nodes(), "one:1 two:1") << answer;
  }
}

TEST(RouterRedirect, WithoutAClusterItSaysWhatToUse) {
  for (const Topology topology : {Topology::kStandalone, Topology::kSentinel}) {
    Config config;
    config.topology = topology;
    config.endpoint = {"seed", 1, {}};
    RouterDriver driver(config);
    if (topology == Topology::kSentinel) with(driver, kOne);
    const auto batch = driver.submit(Verb::kGet, {"a"});
    driver.take();
    driver.redirect("a", "MOVED 15495 elsewhere:1");
    EXPECT_EQ(statuses(*batch), "SERVER_ERROR");
    EXPECT_NE(batch->error().text.find("redis+cluster://"), std::string::npos)
        << batch->error().text;
    EXPECT_EQ(driver.nodes().find("elsewhere"), std::string::npos);
  }
}

TEST(RouterRedirect, NodesThatNoMapNamesAreLimited) {
  RouterDriver driver;
  with(driver, kOne);
  for (std::size_t port = 1; port <= Router::kUnmappedNodesMax; ++port) {
    driver.submit(Verb::kGet, {"a"});
    driver.take();
    driver.redirect("a", "ASK 15495 10.0.0.1:" + std::to_string(port));
    ASSERT_EQ(driver.take(), "10.0.0.1:" + std::to_string(port) + "=a");
    driver.settle("a", Status::kOk);
  }
  const auto batch = driver.submit(Verb::kGet, {"a"});
  ASSERT_EQ(driver.take(), "one:1=a");
  driver.redirect("a", "MOVED 15495 one:2");
  EXPECT_EQ(driver.router().nodes().size(), 1 + Router::kUnmappedNodesMax);
  EXPECT_EQ(statuses(*batch), "PENDING");
  driver.router().release_parked(kLongAfter);
  EXPECT_EQ(driver.take(), "one:1=a") << "it waits for a map that is of use";
  with(driver, kTwo);
  EXPECT_EQ(driver.router().nodes().size(), 2 + Router::kUnmappedNodesMax) << "a map's word counts";
  with(driver, kOne);
  with(driver, kOne, kLongAfter);
  EXPECT_EQ(driver.nodes(), "one:1") << "and those that no map names go";
}

TEST(RouterRedirect, AReplicaThatMovesAKeyAwaySendsItToThePrimary) {
  RouterDriver driver(RouterDriver::cluster(ReadFrom::kReplica));
  with(driver, {"0-16383 one:1 one:2"});
  driver.up("one:2(replica)");
  driver.submit(Verb::kGet, {"a"});
  ASSERT_EQ(driver.take(), "one:2(replica)=a");
  driver.redirect("a", "MOVED 15495 one:1");
  ASSERT_EQ(driver.take(), "one:1=a");
  driver.redirect("a", "TRYAGAIN");
  driver.router().release_parked(kLongAfter);
  EXPECT_EQ(driver.take(), "one:1=a") << "not to the replica again";
}

// --- Parked commands ---

TEST(RouterParked, KeepTheirDeadlineAndMayBeCancelled) {
  RouterDriver driver;
  const auto expiring = with(driver, kTwo).submit(Verb::kGet, {"a"}, 5);
  const auto cancelled = driver.submit(Verb::kGet, {"b"});
  driver.take();
  driver.redirect("a", "TRYAGAIN");
  driver.redirect("b", "TRYAGAIN");
  EXPECT_EQ(driver.router().release_parked(0), 5)
      << "a deadline comes before the time to try again";
  driver.router().release_parked(5);
  driver.router().sweep(5);
  EXPECT_EQ(statuses(*expiring), "TIMEOUT");
  cancelled->cancel();
  driver.router().release_parked(5);
  driver.router().sweep(5);
  EXPECT_EQ(statuses(*cancelled), "CANCELLED");
  EXPECT_EQ(driver.router().waiting(), 0u);
}

TEST(RouterParked, AreRefusedWithEverythingElse) {
  RouterDriver driver;
  const auto batch = with(driver, kTwo).submit(Verb::kGet, {"a", "b"});
  driver.take();
  driver.redirect("a", "TRYAGAIN");
  driver.holder("b").put_back(driver.work("b"));
  driver.router().refuse_all(Status::kCancelled, "the client was closed");
  EXPECT_EQ(statuses(*batch), "CANCELLED CANCELLED");
  EXPECT_EQ(driver.router().release_parked(kLongAfter), kNever);
}

TEST(RouterParked, CountAgainstTheLimit) {
  Config config = RouterDriver::cluster();
  config.queued_commands_max = 2;
  RouterDriver driver(config);
  with(driver, kTwo).submit(Verb::kGet, {"a", "b"});
  driver.take();
  driver.redirect("a", "TRYAGAIN");
  driver.redirect("b", "TRYAGAIN");
  EXPECT_FALSE(driver.router().submit(driver.batch(Verb::kGet, {"c"})));
}

}  // namespace
}  // namespace kvferry::redis
