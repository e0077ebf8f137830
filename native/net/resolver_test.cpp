#include "net/resolver.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

namespace kvferry::net {
namespace {

Endpoint tcp(const std::string& host, std::uint16_t port) { return {host, port, {}}; }

TEST(Resolver, CallsBackOnceForEachRequestInOrder) {
  Resolver resolver;
  std::promise<void> all;
  std::vector<std::size_t> addresses;
  for (const char* host : {"127.0.0.1", "a name with spaces", "::1"}) {
    resolver.request(tcp(host, 1), [&](Result<std::vector<Address>> found) {
      addresses.push_back(found ? found->size() : 0);
      if (addresses.size() == 3) all.set_value();
    });
  }
  all.get_future().wait();
  EXPECT_EQ(addresses, (std::vector<std::size_t>{1, 0, 1}));
}

TEST(Resolver, ACallbackMayAskAgain) {
  Resolver resolver;
  std::promise<void> second;
  resolver.request(tcp("127.0.0.1", 1), [&](auto) {
    resolver.request(tcp("127.0.0.1", 2), [&](auto) { second.set_value(); });
  });
  second.get_future().wait();
}

TEST(Resolver, ItsEndWaitsForTheCallbackThatRuns) {
  auto resolver = std::make_unique<Resolver>();
  std::promise<void> inside;
  std::promise<void> proceed;
  std::atomic<bool> returned{false};
  resolver->request(tcp("127.0.0.1", 1), [&](auto) {
    inside.set_value();
    proceed.get_future().wait();
    returned = true;
  });
  inside.get_future().wait();
  std::promise<bool> destroyed;
  auto outcome = destroyed.get_future();
  std::thread destroyer([&] {
    resolver.reset();
    destroyed.set_value(returned);
  });
  EXPECT_EQ(outcome.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout);
  proceed.set_value();
  EXPECT_TRUE(outcome.get()) << "it was destroyed under a callback that runs";
  destroyer.join();
}

TEST(Resolver, NoCallbackRunsOnceItIsGone) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> called{0};
    auto resolver = std::make_unique<Resolver>();
    for (int i = 0; i < 500; ++i) {
      resolver->request(tcp("127.0.0.1", 1), [&](auto) { called.fetch_add(1); });
    }
    resolver.reset();
    const int before = called;
    Resolver another;  // passes the time that a late callback would need
    std::promise<void> done;
    another.request(tcp("127.0.0.1", 1), [&](auto) { done.set_value(); });
    done.get_future().wait();
    EXPECT_EQ(called, before);
  }
}

TEST(Resolver, ComesAndGoesWithoutWork) {
  for (int round = 0; round < 20; ++round) {
    Resolver idle;
    Resolver busy;
    busy.request(tcp("127.0.0.1", 1), [](auto) {});
  }
}

}  // namespace
}  // namespace kvferry::net
