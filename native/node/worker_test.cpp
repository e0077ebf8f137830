#include "node/worker.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <new>
#include <string>
#include <thread>
#include <utility>

#include "node/test_store.hpp"

namespace kvferry::node {
namespace {

// Values of which one cannot be had without memory.
class Broken final : public LentOnly {
 public:
  ValuePtr hold(std::string_view key, UnixMs /*now*/) override {
    if (key == "bad") throw std::bad_alloc();
    return nullptr;
  }
  std::optional<Facts> facts(std::string_view /*key*/, UnixMs /*now*/, bool /*use*/) override {
    return std::nullopt;
  }
  std::uint64_t scan(std::uint64_t /*cursor*/, std::size_t /*count*/, UnixMs /*now*/,
                     const Visit& /*visit*/) override {
    return 0;
  }
  ValuesUsage usage() const override { return {}; }
  void sweep(UnixMs /*now*/) override {}
};

// A connection to a worker.
class Peer {
 public:
  explicit Peer(NodeWorker& worker) {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    fd_ = UniqueFd(fds[0]);
    EXPECT_EQ(::fcntl(fds[1], F_SETFL, O_NONBLOCK), 0);
    worker.expect_one();
    net::Address address;
    address.storage.ss_family = AF_UNIX;
    worker.mailbox().give({net::adopt_stream(UniqueFd(fds[1]), address), "test:1"});
  }

  // The first bytes of the reply; "": the connection has ended.
  std::string ask(std::string_view words) {
    EXPECT_EQ(::write(fd_.get(), words.data(), words.size()), ssize_t(words.size()));
    char reply[64];
    const ssize_t count = ::read(fd_.get(), reply, sizeof reply);
    return count > 0 ? std::string(reply, static_cast<std::size_t>(count)) : "";
  }

 private:
  UniqueFd fd_;
};

TEST(NodeWorker, WhatThrowsEndsItsConnectionAndNoOther) {
  TestNode node;
  Broken values;
  Context context{values,        node.access, node.clients,    node.in_flight,
                  node.counters, node.agent,  SessionLimits{}, {.version = "1.2.3"}};
  auto worker = NodeWorker::open(context, PaceLimits{});
  ASSERT_TRUE(worker.has_value());
  std::thread thread([&] { (*worker)->run(); });
  Peer good(**worker);
  for (int round = 0; round < 3; ++round) {
    Peer bad(**worker);
    EXPECT_EQ(bad.ask("GET bad\r\n"), "");
    EXPECT_EQ(good.ask("GET k\r\n"), "$-1\r\n");
  }
  EXPECT_EQ(node.counters.failed.load(), 3u);
  (*worker)->stop();
  thread.join();
}

}  // namespace
}  // namespace kvferry::node
