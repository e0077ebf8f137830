// A node among clients that say nothing, take nothing, or take their time: they go, others stay.
#include <gtest/gtest.h>

#include <list>
#include <string>

#include "node/test_node.hpp"

namespace kvferry::node {
namespace {

class NodeHostile : public NodeTest {
 protected:
  [[nodiscard]] std::uint64_t silent_closed() const {
    return node_->context().counters.silent_closed;
  }
  [[nodiscard]] std::uint64_t slow_closed() const { return node_->context().counters.slow_closed; }
  [[nodiscard]] std::uint64_t hungry_closed() const {
    return node_->context().clients.hungry_closed();
  }
  // It has said something, so it may be quiet for as long as it likes.
  static void expect_served(const Peer& peer) { EXPECT_EQ(peer.ask({"PING"}, 7), "+PONG\r\n"); }
};

TEST_F(NodeHostile, WhoSaysNoWholeCommandIsNotWaitedFor) {
  options_.pace.silence = 600 * kMilli;
  start();
  const Peer honest = peer();
  expect_served(honest);
  const Peer silent = peer(), half = peer(1);
  half.send("*1\r\n$4\r\nPI");
  EXPECT_TRUE(silent.ends());
  EXPECT_TRUE(half.ends());
  EXPECT_TRUE(comes([&] { return silent_closed() == 2; }));
  expect_served(honest);
  EXPECT_EQ(node_->context().clients.count(), 1u);
}

TEST_F(NodeHostile, WhereOneMustSayWhoHeIsOtherWordsAreNoCommand) {
  options_.pace.silence = 600 * kMilli;
  options_.users = {{.name = "default", .password = "secret", .read = {""}, .write = {""}}};
  start();
  const Peer known = peer(), stranger = peer();
  EXPECT_EQ(known.ask({"AUTH", "secret"}, 5), "+OK\r\n");
  EXPECT_EQ(stranger.ask({"PING"}, 35), "-NOAUTH Authentication required.\r\n");
  EXPECT_TRUE(stranger.ends());
  expect_served(known);
}

TEST_F(NodeHostile, SilentOnesMakeRoomForWhoComes) {
  options_.connections_max = 8;
  start();
  const Peer honest = peer();
  expect_served(honest);
  std::list<Peer> silent;
  for (int i = 0; i < 30; ++i) silent.push_back(peer());
  for (int i = 0; i < 7; ++i) {
    const Peer late = peer();
    expect_served(late);
  }
  expect_served(honest);
}

TEST_F(NodeHostile, ALargeValueMustKeepAPaceByItsLengthAndNobodyWaitsForIt) {
  options_.pace = {.window = 900 * kMilli, .window_bytes_min = 1, .windows_max = 10};
  options_.limits.request.value_bytes_max = 64 * kMiB;
  options_.store.size_bytes = 32 * kMiB;
  start();
  const Peer slow = peer(), other = peer();
  slow.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$31000000\r\n" + std::string(kMiB, 'h'));
  EXPECT_TRUE(comes([&] { return node_->usage().used_bytes > 0; }));
  EXPECT_EQ(other.ask({"SET", "l", std::string(8 * kMiB, 'v')}, 5), "+OK\r\n");
  // More than window_bytes_min, and far from a tenth of the value.
  while (slow_closed() == 0 && slow.send("h")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(comes([&] { return slow_closed() == 1; }));
  expect_served(other);
}

TEST_F(NodeHostile, ManyWhoDoNotReadTakeNoMoreMemoryThanAllMayHave) {
  options_.limits.held_bytes_max = kMiB;
  start();
  const Peer honest = peer();
  expect_served(honest);
  EXPECT_EQ(honest.ask({"SET", "k", std::string(2000, 't')}, 5), "+OK\r\n");  // sent as a text
  std::string many;
  for (int i = 0; i < 8000; ++i) many += "GET k\r\n";
  std::list<Peer> greedy;
  for (int i = 0; i < 24; ++i) {
    greedy.push_back(peer(static_cast<std::size_t>(i % 2)));
    greedy.back().send(many);
  }
  EXPECT_TRUE(comes([&] { return hungry_closed() > 4; }));
  EXPECT_TRUE(comes([&] { return node_->context().clients.held_bytes() <= kMiB; }));
  expect_served(honest);
}

TEST_F(NodeHostile, PagesOfReadersWhoStopComeBackWhenTheyAreWanted) {
  options_.in_flight_bytes_max = 8 * kMiB;
  start();
  const Peer honest = peer();
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(honest.ask({"SET", "k" + std::to_string(i), std::string(4 * kMiB, 'v')}, 5),
              "+OK\r\n");
  }
  std::list<Peer> greedy;
  for (int i = 0; i < 8; ++i) {
    greedy.push_back(peer());
    for (int again = 0; again < 8; ++again)
      greedy.back().send("GET k" + std::to_string(i) + "\r\n");
    EXPECT_EQ(greedy.back().take(1), "$");
  }
  // All pages are of values that are being sent. Nobody hears BUSY for what is there, and
  // a writer not for longer than readers take to stall.
  const std::size_t answer = 4 * kMiB + 12;
  EXPECT_EQ(honest.ask({"GET", "k0"}, answer).size(), answer);
  EXPECT_TRUE(comes([&] {
    honest.send(TestSession::encoded({"SET", "new", std::string(4 * kMiB, 'w')}));
    return honest.line() == "+OK\r\n";
  }));
  EXPECT_GE(hungry_closed(), 1u);
  EXPECT_EQ(slow_closed(), 0u);
}

}  // namespace
}  // namespace kvferry::node
