#pragma once
// What the tests of a whole node share: blocking peers, and a node of the test's own.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "node/node_server.hpp"
#include "node/test_store.hpp"

namespace kvferry::node {

inline constexpr int kPatienceMs = 60'000;  // for what must come, on a machine that is busy

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

inline bool comes(const std::function<bool()>& condition) {
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

}  // namespace kvferry::node
