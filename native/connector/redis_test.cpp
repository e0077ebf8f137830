#include "connector/redis.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "connector/test_jobs.hpp"
#include "fuzz/client_driver.hpp"
#include "fuzz/scripted_server.hpp"

namespace kvferry::connector {
namespace {

constexpr std::size_t kSize = 5 * kMiB;  // two stripes

std::shared_ptr<redis::Client> client_of(const redis::ScriptedServer& server) {
  return redis::open(redis::client_config(server.port()));
}

Open open(const std::shared_ptr<redis::Client>& client, std::size_t size = kSize,
          unsigned identity = 1) {
  return Open(RedisConnector::open(test_space(size, identity), client));
}

TEST(RedisConnector, ValuesGoInStripesAndComeBack) {
  redis::ScriptedServer server;
  const auto client = client_of(server);
  const Open store = open(client);
  EXPECT_EQ(get(*store, "a"), "MISS");
  EXPECT_EQ(set(*store, "a", 1), "OK");
  EXPECT_TRUE(server.has("p:a") && server.has("p:a#1"));
  expect_value(*store, "a", 1);
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kTouch}, {"a", "b"})), "OK MISS");
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kDelete}, {"a"})), "OK");
  EXPECT_FALSE(server.has("p:a#1"));
  EXPECT_EQ(store->running(), 0u);
}

TEST(RedisConnector, WhatIsNotTakenIsCountedOnceAndAllStripesOfItGo) {
  redis::ScriptedServer server;
  const auto client = client_of(server);
  const Open store = open(client);
  const Open other = open(client, kSize, 2);
  const Open small = open(client, 100);
  const auto await_gone = [&](const std::string& key) {
    const Nanos until = monotonic_ns() + kPatience;
    while (server.has(key) && monotonic_ns() < until) std::this_thread::yield();
    EXPECT_FALSE(server.has(key)) << key;
  };
  ASSERT_EQ(set(*store, "a", 1), "OK");
  EXPECT_EQ(get(*other, "a"), "CORRUPT");
  EXPECT_EQ(refused(*other, codec::FrameFault::kIdentity), 1u);
  await_gone("p:a");
  await_gone("p:a#1");
  ASSERT_EQ(set(*store, "a", 1), "OK");
  EXPECT_EQ(get(*small, "a"), "SIZE_MISMATCH");
  EXPECT_EQ(refused(*small, codec::FrameFault::kSize), 1u);
  await_gone("p:a");
  await_gone("p:a#1");
  ASSERT_EQ(set(*store, "a", 1), "OK");
  server.put("p:a", "no frame");
  EXPECT_EQ(get(*store, "a"), "CORRUPT");
  EXPECT_EQ(refused(*store, codec::FrameFault::kMagic), 1u);
  await_gone("p:a#1");
}

TEST(RedisConnector, ManyJobsWithCancelsAndAnEnd) {
  redis::ScriptedServer server;
  const auto client = client_of(server);
  const Open store = open(client, 100'000);
  std::vector<std::thread> threads;
  std::atomic<int> hangs{0};
  for (unsigned thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (unsigned round = 0; round < 20; ++round) {
        std::vector<Buffer> buffers;
        std::vector<std::string> keys;
        for (unsigned key = 0; key < 6; ++key) {
          keys.push_back(std::to_string(key));
          buffers.emplace_back(100'000);
        }
        const auto job =
            make_job({.verb = round % 2 == 0 ? Verb::kSet : Verb::kGet}, keys, &buffers);
        const auto id = store->submit(job);
        if (!id) continue;
        if (round % 4 == 0) store->cancel(*id);
        while (!job->wait(monotonic_ns() + kMilli) && hangs == 0) {
          if (store->progress(*job) > job->size()) ++hangs;
        }
        if (job->progress() > job->size()) ++hangs;
      }
      if (thread == 0) store->close();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(hangs.load(), 0);
  EXPECT_EQ(store->running(), 0u);
}

// Answers what a view asks; nothing changes but what we write ourselves.
bool answer_view(const redis::ScriptedServer::Peer& peer,
                 const redis::ScriptedServer::Command& words) {
  if (words[0] == "HELLO") return peer.send("%1\r\n$5\r\nproto\r\n:3\r\n");
  if (words[0] == "CLIENT" && words[1] == "TRACKING") return peer.send("+OK\r\n");
  if (words[0] == "SCAN") return peer.send("*2\r\n$1\r\n0\r\n*0\r\n");
  return false;
}

TEST(RedisConnector, WhatAViewKnowsToBeAbsentIsNotAskedFor) {
  std::atomic<int> asked{0};
  redis::ScriptedServer server([&](auto& peer, const auto& words) {
    const bool reads = words[0] == "GET" || words[0] == "TOUCH";
    if (reads && words[1].starts_with("p:no")) ++asked;
    return answer_view(peer, words);
  });
  const auto client = client_of(server);
  const Open store(RedisConnector::open(test_space(1000), client, redis::PresenceOptions{}));
  const auto await_absent = [&](const std::string& key, bool wanted) {
    const Nanos until = monotonic_ns() + kPatience;
    while (store->absent(key) != wanted && monotonic_ns() < until) std::this_thread::yield();
    EXPECT_EQ(store->absent(key), wanted) << key;
  };
  await_absent("a", true);
  for (const std::string key : {"a", "b"}) EXPECT_EQ(set(*store, key, 1), "OK");
  await_absent("a", false);
  await_absent("no1", true);
  const std::string_view prefix[] = {"a", "b", "no1", "c"};
  const Nanos until = monotonic_ns() + kPatience;  // what was written is unknown for a moment
  while (store->leading(prefix) != 2U && monotonic_ns() < until) std::this_thread::yield();
  EXPECT_EQ(store->leading(prefix), 2U);
  EXPECT_EQ(store->leading(std::span(prefix).first(2)), 2U);
  const std::vector<std::string> keys{"a", "no1", "b", "no2"};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        std::vector<Buffer> buffers;
        for (std::size_t key = 0; key < keys.size(); ++key) buffers.emplace_back(1000);
        const auto read = make_job({.verb = Verb::kGet}, keys, &buffers);
        EXPECT_EQ(run(*store, read), "OK MISS OK MISS");
        EXPECT_EQ(buffers[2].text(), value_of(1000, 1));
        EXPECT_EQ(read->progress(), 1u);
        EXPECT_EQ(run(*store, make_job({.verb = Verb::kTouch, .prefix = true}, keys)),
                  "OK MISS CANCELLED CANCELLED");
        const auto none = make_job({.verb = Verb::kTouch}, {"no1", "no2"});
        EXPECT_EQ(run(*store, none), "MISS MISS");
        EXPECT_EQ(none->elapsed(), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(asked.load(), 0);
  EXPECT_EQ(store->stats().keys_unasked.load(), 3u * 100 * (2 + 3 + 2));
  EXPECT_EQ(store->running(), 0u);
}

TEST(RedisConnector, AClientThatWasClosedEndsItsJobs) {
  redis::ScriptedServer server;
  const auto client = client_of(server);
  const Open store = open(client);
  client->close();
  const auto submitted = store->submit(make_job({.verb = Verb::kExists}, {"a"}));
  ASSERT_FALSE(submitted);
  EXPECT_EQ(submitted.error().code, Errc::kClosed);
  EXPECT_EQ(store->running(), 0u);
}

}  // namespace
}  // namespace kvferry::connector
