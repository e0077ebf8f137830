// The node over real sockets: several threads, slow readers, limits, its end and its return.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "node/test_node.hpp"

namespace kvferry::node {
namespace {

TEST_F(NodeTest, LargeValuesTravelOverTcpAndUnix) {
  start();
  const std::string value(4 * kMiB + 64, 'v');
  for (const std::size_t endpoint : {0u, 1u}) {
    const Peer one = peer(endpoint);
    const std::string key = "k" + std::to_string(endpoint);
    EXPECT_EQ(one.ask({"SET", key, value}, 5), "+OK\r\n");
    const std::string head = "$" + std::to_string(value.size()) + "\r\n";
    EXPECT_EQ(one.ask({"GET", key}, head.size() + value.size() + 2), head + value + "\r\n");
  }
  EXPECT_TRUE(comes([&] { return node_->context().in_flight.bytes() == 0; }));
}

TEST_F(NodeTest, SlowReaderLosesHisConnectionAndThePoolItsPagesBack) {
  options_.pace = {.window = 600 * kMilli, .window_bytes_min = kMiB};
  start();
  const Peer slow = peer();
  const Peer other = peer();
  EXPECT_EQ(other.ask({"SET", "k", std::string(8 * kMiB, 'v')}, 5), "+OK\r\n");
  slow.send("GET k\r\nGET k\r\n");  // and reads nothing
  EXPECT_TRUE(comes([&] { return node_->context().counters.slow_closed == 1; }));
  EXPECT_EQ(other.ask({"DEL", "k"}, 4), ":1\r\n");
  EXPECT_TRUE(comes([&] { return node_->usage().used_bytes == 0; }));
  EXPECT_EQ(node_->context().in_flight.bytes(), 0u);
  EXPECT_TRUE(slow.ends());
}

TEST_F(NodeTest, LeasesOfAReaderWhoIsSilentOrGoneComeBack) {
  start();
  node_->set_agent(77, "meta");
  const Peer writer = peer();
  EXPECT_EQ(writer.ask({"SET", "k", std::string(kMiB, 'v')}, 5), "+OK\r\n");
  const auto leased = [&] { return node_->context().in_flight.bytes() == kMiB; };
  const auto back = [&] { return node_->context().in_flight.bytes() == 0; };
  const Peer silent = peer();
  EXPECT_EQ(silent.ask({"LEASE", "50", "k"}, 8), "*4\r\n:1\r\n");
  EXPECT_TRUE(comes([&] { return node_->context().counters.leases_expired == 1; }));
  EXPECT_TRUE(back());
  {
    const Peer gone = peer();
    EXPECT_EQ(gone.ask({"LEASE", "9000", "k"}, 8), "*4\r\n:1\r\n");
    EXPECT_TRUE(leased());
  }
  EXPECT_TRUE(comes(back));
  EXPECT_EQ(node_->context().counters.leases_expired, 1u);  // it did not take its time
}

TEST_F(NodeTest, WriterWhoStopsInsideAValueIsNotWaitedFor) {
  options_.pace = {.window = 600 * kMilli, .window_bytes_min = kMiB};
  start();
  const Peer slow = peer();
  slow.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9000000\r\nhalf");
  EXPECT_TRUE(comes([&] { return node_->usage().used_bytes > 0; }));
  EXPECT_TRUE(slow.ends());
  EXPECT_TRUE(comes([&] { return node_->usage().used_bytes == 0; }));
}

TEST_F(NodeTest, ConnectionsAboveTheLimitAreRefusedWithAReason) {
  options_.connections_max = 1;
  start();
  const Peer first = peer();
  EXPECT_EQ(first.ask({"PING"}, 7), "+PONG\r\n");
  const Peer second = peer();
  EXPECT_EQ(second.take(36), "-ERR max number of clients reached\r\n");
  EXPECT_TRUE(second.ends());
}

TEST_F(NodeTest, EndsWithConnectionsInTheMiddleOfValues) {
  start();
  const Peer reader = peer(), writer = peer();
  EXPECT_EQ(reader.ask({"SET", "k", std::string(8 * kMiB, 'v')}, 5), "+OK\r\n");
  reader.send("GET k\r\n");
  writer.send("*3\r\n$3\r\nSET\r\n$1\r\nl\r\n$9000000\r\nhalf");
  EXPECT_EQ(reader.take(10).size(), 10u);
  EXPECT_TRUE(node_->stop().has_value());
  EXPECT_TRUE(reader.ends());
  EXPECT_TRUE(writer.ends());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".s"));
}

TEST_F(NodeTest, StateComesBackAfterAnOrderlyEnd) {
  options_.state_file = path_ + ".state";
  start();
  const std::string value(3 * kMiB, 's');
  EXPECT_EQ(peer().ask({"SET", "k", value}, 5), "+OK\r\n");
  EXPECT_TRUE(node_->stop().has_value());
  start();
  EXPECT_EQ(node_->loaded().values, 1u);
  EXPECT_EQ(peer().ask({"GET", "k"}, 10 + value.size() + 2), "$3145728\r\n" + value + "\r\n");
  EXPECT_FALSE(std::filesystem::exists(options_.state_file));  // read once
}

TEST_F(NodeTest, AddressThatIsTakenIsAnErrorAndOneLeftBehindIsNot) {
  start();
  options_.listen = {unix_endpoint()};
  EXPECT_FALSE(NodeServer::open(options_).has_value());
  EXPECT_EQ(peer(1).ask({"PING"}, 7), "+PONG\r\n");  // still there
  (void)node_->stop();
  {
    const auto addresses = net::resolve(options_.listen[0]);
    const UniqueFd left(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(left.get(), reinterpret_cast<const sockaddr*>(&addresses->front().storage),
                     addresses->front().length),
              0);
  }
  start();
}

TEST_F(NodeTest, TrackerHearsOfWhatOtherThreadsChange) {
  start();
  const Peer tracker = peer(), writer = peer();
  tracker.send("HELLO 3\r\nCLIENT TRACKING ON BCAST PREFIX a:\r\n");
  EXPECT_TRUE(comes([&] { return node_->context().clients.tracking_count() == 1; }));
  EXPECT_EQ(writer.ask({"SET", "a:1", "x"}, 5), "+OK\r\n");
  std::string heard;
  while (!heard.ends_with("a:1\r\n")) {
    const std::string more = tracker.take(1);
    ASSERT_FALSE(more.empty());
    heard += more;
  }
}

TEST_F(NodeTest, ManyReadersSeeWholeValuesWhileWritersEvict) {
  options_.store.size_bytes = 8 * kMiB;
  start();
  const std::size_t size = 700'000;
  const auto word = [](int i, int t) { return "k" + std::to_string(i * (2 * t + 1) % 16); };
  const auto value = [&](const std::string& key) {
    return std::string(size, static_cast<char>('a' + std::stoi(key.substr(1))));
  };
  std::atomic<int> hits{0}, wrong{0}, writing{2};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      const Peer mine = peer(static_cast<std::size_t>(t));
      for (int i = 0; i < 60; ++i) {
        mine.send(TestSession::encoded({"SET", word(i, t), value(word(i, t))}));
        std::ignore = mine.line();  // OK or BUSY
      }
      --writing;
    });
  }
  for (int t = 2; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const Peer mine = peer(static_cast<std::size_t>(t % 2));
      // A round more than the writers: of what they left something is found.
      for (int i = 0, after = 0; after < 16; ++i) {
        if (writing == 0) ++after;
        mine.send(TestSession::encoded({"GET", word(i, t)}));
        const std::string head = mine.line();
        if (head == "$-1\r\n" || head.starts_with("-BUSY ")) continue;
        ++hits;
        if (head + mine.take(size + 2) == "$700000\r\n" + value(word(i, t)) + "\r\n") continue;
        ++wrong;
        break;  // whatever comes now is out of step
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 0);
}

}  // namespace
}  // namespace kvferry::node
