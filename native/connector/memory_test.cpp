#include "connector/memory.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <map>
#include <thread>

#include "connector/test_jobs.hpp"

namespace kvferry::connector {
namespace {

constexpr std::size_t kSize = 1000;

Open open(std::size_t size = kSize, std::uint64_t capacity = 0, const std::string& name = "",
          unsigned identity = 1, std::size_t queued_keys_max = 1000) {
  return Open(MemoryConnector::open(test_space(size, identity), name, capacity, queued_keys_max));
}

TEST(MemoryConnector, WhatWasStoredComesBackUntilItIsDeleted) {
  const Open store = open();
  EXPECT_EQ(get(*store, "a"), "MISS");
  EXPECT_EQ(set(*store, "a", 1), "OK");
  EXPECT_EQ(set(*store, "b", 2), "OK");
  expect_value(*store, "a", 1);
  EXPECT_EQ(set(*store, "a", 3), "OK");
  expect_value(*store, "a", 3);
  EXPECT_EQ(store->usage()->used_bytes, 2 * MemoryStore::cost(kSize));
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kExists}, {"a", "c", "b"})), "OK MISS OK");
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kDelete}, {"a", "a"})), "OK MISS");
  EXPECT_EQ(get(*store, "a"), "MISS");
  EXPECT_EQ(store->usage()->keys, 1u);
  const auto page = store->scan(0);
  ASSERT_TRUE(page);
  ASSERT_EQ(page->entries.size(), 1u);
  EXPECT_EQ(page->entries[0].key, "b");
}

TEST(MemoryConnector, OtherSpacesOfANamedStoreGetNothingThatIsNotTheirs) {
  const Open store = open(kSize, 0, "shared");
  const Open peer = open(kSize, 0, "shared");
  const Open other = open(kSize, 0, "shared", 2);
  const Open longer = open(kSize + 1, 0, "shared");
  ASSERT_EQ(set(*store, "a", 1), "OK");
  expect_value(*peer, "a", 1);
  EXPECT_EQ(get(*other, "a"), "CORRUPT");
  EXPECT_EQ(refused(*other, codec::FrameFault::kIdentity), 1u);
  EXPECT_EQ(get(*store, "a"), "MISS") << "it was deleted";
  ASSERT_EQ(set(*store, "a", 1), "OK");
  EXPECT_EQ(get(*longer, "a"), "SIZE_MISMATCH");
  EXPECT_EQ(refused(*longer, codec::FrameFault::kSize), 1u);
  EXPECT_EQ(get(*store, "a"), "MISS");
  EXPECT_FALSE(MemoryConnector::open(test_space(kSize), "shared", 5)) << "another capacity";
  EXPECT_EQ(store->descriptions()->size(), 2u);
}

TEST(MemoryConnector, AFullStoreSaysSoAndStillReplaces) {
  const Open store = open(kSize, 2 * MemoryStore::cost(kSize));
  EXPECT_EQ(set(*store, "a", 1), "OK");
  EXPECT_EQ(set(*store, "b", 2), "OK");
  std::vector<Buffer> buffers;
  buffers.emplace_back(kSize);
  const auto job = make_job({.verb = Verb::kSet}, {"c"}, &buffers);
  EXPECT_EQ(run(*store, job), "SERVER_ERROR");
  EXPECT_NE(job->error().text.find("full: 2128 of 2128"), std::string::npos) << job->error().text;
  EXPECT_EQ(set(*store, "a", 3), "OK");
  expect_value(*store, "a", 3);
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kDelete}, {"b"})), "OK");
  EXPECT_EQ(set(*store, "c", 4), "OK");
}

TEST(MemoryConnector, ValuesExpire) {
  const Open store = open();
  std::vector<Buffer> buffers;
  buffers.emplace_back(kSize);
  ASSERT_EQ(run(*store, make_job({.verb = Verb::kSet, .ttl_ms = 1}, {"a"}, &buffers)), "OK");
  const Nanos until = monotonic_ns() + kPatience;
  while (get(*store, "a") != "MISS") ASSERT_LT(monotonic_ns(), until);
  EXPECT_EQ(store->usage()->keys, 0u);
}

TEST(Connector, RefusesWhatCannotBeRight) {
  const Open store = open(kSize, 0, "", 1, 4);
  std::vector<Buffer> buffers;
  buffers.emplace_back(kSize - 1);
  const auto wrong = store->submit(make_job({.verb = Verb::kGet}, {"a"}, &buffers));
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Errc::kInvalidArgument);
  EXPECT_FALSE(store->submit(make_job({.verb = Verb::kExists}, {std::string(511, 'k')})));
  const std::vector<std::string> many(5, "k");
  EXPECT_EQ(store->submit(make_job({.verb = Verb::kExists}, many)).error().code, Errc::kCapacity);
  EXPECT_EQ(store->running(), 0u);
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kExists, .deadline = 1}, {"a"})), "TIMEOUT");
  store->close();
  store->close();
  EXPECT_EQ(store->submit(make_job({.verb = Verb::kExists}, {"k"})).error().code, Errc::kClosed);
}

TEST(Connector, CompletionsComeThroughOneDescriptor) {
  const Open store = open();
  std::map<std::uint64_t, int> finished;
  for (int index = 0; index < 50; ++index) {
    const auto job = make_job({.verb = Verb::kExists}, {"k"});
    job->quiet = false;
    const auto id = store->submit(job);
    ASSERT_TRUE(id);
    finished[*id] = 0;
  }
  for (std::size_t seen = 0; seen < finished.size();) {
    pollfd event{store->event_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&event, 1, 10'000), 1);
    for (const auto& job : store->drain()) {
      ++finished[job->id];
      ++seen;
    }
  }
  for (const auto& [id, count] : finished) EXPECT_EQ(count, 1) << id;
  EXPECT_TRUE(store->drain().empty());
  pollfd event{store->event_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&event, 1, 0), 0) << "nothing waits any more";
}

TEST(Connector, ManyThreadsSubmitCancelAndCloseAtOnce) {
  const Open store = open(64 * 1024, 40 * MemoryStore::cost(64 * 1024));
  std::vector<std::thread> threads;
  std::atomic<int> hangs{0};
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (unsigned round = 0; round < 40; ++round) {
        std::vector<Buffer> buffers;
        std::vector<std::string> keys;
        for (unsigned key = 0; key < 8; ++key) {
          keys.push_back(std::to_string((round + key) % 10));
          buffers.emplace_back(64 * 1024);
          buffers.back().fill(key);
        }
        const Verb verb = round % 2 == thread % 2 ? Verb::kSet : Verb::kGet;
        const auto job = make_job({.verb = verb}, keys, &buffers);
        const auto id = store->submit(job);
        if (!id) continue;  // closed
        if (round % 5 == 0) store->cancel(*id);
        if (!job->wait(monotonic_ns() + kPatience)) ++hangs;
      }
      if (thread == 0) store->close();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(hangs.load(), 0);
  EXPECT_EQ(store->running(), 0u);
}

}  // namespace
}  // namespace kvferry::connector
