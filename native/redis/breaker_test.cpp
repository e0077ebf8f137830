// The small machines that decide when to try and when to tell: Breaker, Backoff, Completions.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "redis/backoff.hpp"
#include "redis/breaker.hpp"
#include "redis/completions.hpp"

namespace kvferry::redis {
namespace {

TEST(Breaker, OpensAfterEnoughFailuresAndOnlyWithoutAConnection) {
  using enum Breaker::Failure;
  Breaker breaker;
  EXPECT_FALSE(breaker.open()) << "a client that has not tried yet may hope";
  for (int i = 1; i < Breaker::kFailuresToOpen; ++i) breaker.on_dial_failed(kRefused);
  EXPECT_FALSE(breaker.open());
  breaker.on_dial_failed(kRefused);
  EXPECT_TRUE(breaker.open());
  breaker.on_up();
  EXPECT_FALSE(breaker.open());
  breaker.on_dial_failed(kDecisive);
  EXPECT_FALSE(breaker.open()) << "one connection is up";
  breaker.on_lost(false);
  EXPECT_TRUE(breaker.open());
}

TEST(Breaker, SilenceAndCredentialsAreDecisive) {
  Breaker refused;
  refused.on_dial_failed(Breaker::Failure::kDecisive);
  EXPECT_TRUE(refused.open());
  Breaker silent;
  silent.on_up();
  silent.on_up();
  silent.on_lost(true);
  EXPECT_FALSE(silent.open());
  EXPECT_EQ(silent.up(), 1);
  silent.on_lost(false);
  EXPECT_TRUE(silent.open());
}

TEST(Breaker, AConnectionThatEndsProperlyIsNoFailure) {
  Breaker breaker;
  breaker.on_up();
  breaker.on_lost(false);
  EXPECT_FALSE(breaker.open());
  breaker.on_dial_failed(Breaker::Failure::kRefused);
  breaker.on_up();  // success forgets
  breaker.on_lost(false);
  breaker.on_dial_failed(Breaker::Failure::kRefused);
  breaker.on_dial_failed(Breaker::Failure::kRefused);
  EXPECT_FALSE(breaker.open());
}

TEST(Backoff, StaysBelowACeilingThatDoubles) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Backoff backoff(80, 1000, seed);
    for (const Nanos ceiling : {80, 160, 320, 640, 1000, 1000, 1000}) {
      const Nanos delay = backoff.next();
      EXPECT_LE(delay, ceiling);
      EXPECT_GE(delay, ceiling / 8) << "never at once";
    }
    backoff.reset();
    EXPECT_LE(backoff.next(), 80);
  }
}

TEST(Backoff, SpreadsClientsApart) {
  std::set<Nanos> delays;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    delays.insert(Backoff(kSecond, kSecond, seed).next());
  }
  EXPECT_GT(delays.size(), 90u);
}

bool readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

std::shared_ptr<Batch> numbered(std::uint64_t id) {
  auto batch = std::make_shared<Batch>(Batch::Options{});
  batch->id = id;
  return batch;
}

TEST(Completions, OneSignalForAllThatIsReady) {
  auto event = EventFd::open();
  ASSERT_TRUE(event);
  Completions completions(std::move(*event));
  EXPECT_FALSE(readable(completions.fd()));
  EXPECT_TRUE(completions.drain().empty());
  for (std::uint64_t id = 1; id <= 100; ++id) completions.push(numbered(id));
  std::uint64_t signals = 0;
  ASSERT_EQ(::read(completions.fd(), &signals, sizeof signals), ssize_t{sizeof signals});
  EXPECT_EQ(signals, 1u);
  const auto batches = completions.drain();
  ASSERT_EQ(batches.size(), 100u);
  for (std::uint64_t id = 1; id <= 100; ++id) EXPECT_EQ(batches[id - 1]->id, id);
  EXPECT_FALSE(readable(completions.fd()));
  completions.push(numbered(101));
  EXPECT_TRUE(readable(completions.fd())) << "after a drain the next push signals again";
}

TEST(Completions, WhatWasReservedIsThereAlsoBehindADrain) {
  auto event = EventFd::open();
  ASSERT_TRUE(event);
  Completions completions(std::move(*event));
  for (int round = 0; round < 3; ++round) {
    for (int n = 0; n < 5; ++n) completions.reserve();
    completions.unreserve();
    completions.push(numbered(1));
    EXPECT_EQ(completions.drain().size(), 1u);
    for (int n = 0; n < 3; ++n) completions.push(numbered(2));
    EXPECT_EQ(completions.drain().size(), 3u);
  }
}

TEST(Completions, NothingIsLostBetweenThreads) {
  auto event = EventFd::open();
  ASSERT_TRUE(event);
  Completions completions(std::move(*event));
  constexpr std::size_t kThreads = 3;
  constexpr std::size_t kEach = 500;
  std::vector<std::thread> workers;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    workers.emplace_back([&] {
      for (std::size_t i = 0; i < kEach; ++i) completions.push(numbered(i));
    });
  }
  std::size_t seen = 0;
  while (seen < kThreads * kEach) {
    pollfd entry{.fd = completions.fd(), .events = POLLIN, .revents = 0};
    const bool signalled = ::poll(&entry, 1, 5000) == 1;
    EXPECT_TRUE(signalled) << "a push without a signal, after " << seen;
    if (!signalled) break;
    seen += completions.drain().size();
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(seen, kThreads * kEach);
}

}  // namespace
}  // namespace kvferry::redis
