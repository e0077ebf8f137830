// The node over real sockets: several threads, slow readers, limits, its end and its return.
#include "node/node_server.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <tuple>

#include "node/test_store.hpp"

namespace kvferry::node {
namespace {

constexpr int kPatienceMs = 60'000;  // for what must come, on a machine that is busy

// A blocking peer.
class Peer {
 public:
  explicit Peer(const net::Endpoint& endpoint) {
    const auto addresses = net::resolve(endpoint);
    const net::Address& address = addresses->front();
    fd_ = UniqueFd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(
        ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length),
        0);
  }

  // False: the node has ended the connection.
  bool send(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t count = ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  // `bytes` of what comes, or less when the connection ends or nothing comes for long.
  [[nodiscard]] std::string take(std::size_t bytes) const {
    std::string out;
    std::vector<char> part(std::min<std::size_t>(bytes, 256 * kKiB));
    while (out.size() < bytes && wait()) {
      const std::size_t wanted = std::min(part.size(), bytes - out.size());
      const ssize_t count = ::recv(fd_.get(), part.data(), wanted, 0);
      if (count <= 0) break;
      out.append(part.data(), static_cast<std::size_t>(count));
    }
    return out;
  }

  // A line with its end, or what came of it.
  [[nodiscard]] std::string line() const {
    std::string out;
    while (!out.ends_with('\n')) {
      const std::string next = take(1);
      if (next.empty()) break;
      out += next;
    }
    return out;
  }

  std::string ask(const std::vector<std::string>& words, std::size_t bytes) const {
    send(TestSession::encoded(words));
    return take(bytes);
  }

  // Whether the node ends the connection, whatever else comes.
  [[nodiscard]] bool ends() const {
    char part[4096];
    while (wait()) {
      if (::recv(fd_.get(), part, sizeof part, 0) <= 0) return true;
    }
    return false;
  }

 private:
  [[nodiscard]] bool wait() const {
    pollfd ready{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&ready, 1, kPatienceMs) == 1;
  }
  UniqueFd fd_;
};

bool comes(const std::function<bool()>& condition) {
  for (int i = 0; i < kPatienceMs / 5; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

class NodeTest : public testing::Test {
 protected:
  NodeTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = testing::TempDir() + "kvf-" + info->name() + std::to_string(::getpid());
    options_.listen = {tcp_endpoint(), unix_endpoint()};
    options_.store = {.size_bytes = 32 * kMiB, .arena = {.hugetlb = false, .prefault = false}};
    options_.threads = 2;
  }
  ~NodeTest() override { std::filesystem::remove(path_ + ".state"); }

  static net::Endpoint tcp_endpoint() {
    net::Endpoint endpoint;
    endpoint.host = "127.0.0.1";
    return endpoint;
  }
  [[nodiscard]] net::Endpoint unix_endpoint() const {
    net::Endpoint endpoint;
    endpoint.unix_path = path_ + ".s";
    return endpoint;
  }

  void start() {
    auto node = NodeServer::open(options_);
    ASSERT_TRUE(node.has_value()) << node.error().context;
    node_ = std::move(*node);
  }
  [[nodiscard]] Peer peer(std::size_t endpoint = 0) const {
    return Peer(node_->endpoints()[endpoint]);
  }

  std::string path_;
  NodeOptions options_;
  std::unique_ptr<NodeServer> node_;
};

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
