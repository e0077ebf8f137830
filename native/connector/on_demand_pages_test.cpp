#include "connector/on_demand_pages.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "connector/redis.hpp"
#include "connector/test_jobs.hpp"
#include "fuzz/client_driver.hpp"
#include "fuzz/scripted_server.hpp"

namespace kvferry::connector {
namespace {

constexpr std::size_t kSize = 5 * kMiB;  // two stripes
constexpr std::size_t kSmall = 100'000;

// A cache with pages, and requests of chunks whose hashes are their numbers.
struct Pages {
  explicit Pages(std::size_t pages, std::size_t size = kSmall)
      : pool(std::move(*mem::PagePool::create(size, pages))),
        cache(std::move(*cache::ChunkCache::create(pages, "LRU", true, pool))) {}

  static std::vector<std::byte> hashes(std::size_t first, std::size_t count) {
    std::vector<std::byte> bytes(count * cache::kHashBytes, std::byte{7});
    for (std::size_t i = 0; i < count; ++i) {
      bytes[i * cache::kHashBytes] = static_cast<std::byte>(first + i);
    }
    return bytes;
  }
  std::shared_ptr<OnDemandPages> on_demand(std::size_t count, std::size_t first = 0) const {
    return std::make_shared<OnDemandPages>(cache, hashes(0, count), first, 100 * kSecond);
  }
  // Others store a run of chunks.
  void store(std::size_t first, std::size_t count) const {
    const auto bytes = hashes(first, count);
    const auto reserved = cache->reserve(cache::Hashes(bytes), 0, kSecond);
    ASSERT_TRUE(cache->commit(reserved.id, {}));
  }
  cache::Prefix lookup(std::size_t count) const {
    const auto bytes = hashes(0, count);
    return cache->lookup(cache::Hashes(bytes));
  }
  std::size_t used() const { return pool->stats().pages_count - pool->stats().free_count; }
  std::uint64_t evictions() const { return cache->stats().index.evictions; }
  std::string text(const OnDemandPages& on_demand, std::size_t index) const {
    std::vector<std::uint8_t> states(on_demand.size());
    std::vector<std::uint64_t> pages(on_demand.size());
    on_demand.states(states, pages);
    const auto memory = pool->bytes(mem::PageHandle::unpack(pages[index]));
    return memory ? std::string(as_text(*memory)) : "no page";
  }

  std::shared_ptr<mem::PagePool> pool;
  std::shared_ptr<cache::ChunkCache> cache;
};

std::vector<std::string> keys_of(std::size_t count) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back("k" + std::to_string(i));
  return keys;
}

std::shared_ptr<Job> job_of(const std::shared_ptr<OnDemandPages>& on_demand,
                            std::size_t size = kSmall) {
  auto job = std::make_shared<Job>(Job::Options{.verb = Verb::kGet});
  for (const std::string& key : keys_of(on_demand->size())) {
    job->add(key, {static_cast<std::byte*>(nullptr), size});
  }
  job->quiet = true;
  job->source = on_demand;
  return job;
}

struct Store {
  explicit Store(redis::ScriptedServer::Script script = {}, std::size_t size = kSmall)
      : server(std::move(script)),
        client(redis::open(config(server.port()))),
        connector(RedisConnector::open(test_space(size), client)) {}
  // One connection: the values come in their order, however far away the server seems to be.
  static redis::Config config(std::uint16_t port) {
    redis::Config one = redis::client_config(port);
    one.connections = 1;
    return one;
  }

  redis::ScriptedServer server;
  std::shared_ptr<redis::Client> client;
  Open connector;
};

constexpr std::uint8_t kAll[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

TEST(OnDemandPages, ANullReplyCostsNoPageAndEvictsNothing) {
  Store store;
  const Pages pages(3);
  pages.store(100, 3);
  const auto on_demand = pages.on_demand(3);
  EXPECT_EQ(run(*store.connector, job_of(on_demand)), "MISS MISS MISS");
  EXPECT_EQ(pages.used(), 3u);
  EXPECT_EQ(pages.evictions(), 0u);
  EXPECT_EQ(on_demand->commit(kAll), 0u);
  EXPECT_EQ(pages.lookup(3).ready, 0u);
}

TEST(OnDemandPages, AValueGoesIntoAPageOfTheCache) {
  for (const std::size_t size : {kSmall, kSize}) {
    Store store({}, size);
    ASSERT_EQ(set(*store.connector, "k0", 1), "OK");
    ASSERT_EQ(set(*store.connector, "k1", 2), "OK");
    const Pages pages(4, size);
    pages.store(100, 4);
    const auto on_demand = pages.on_demand(3);
    EXPECT_EQ(run(*store.connector, job_of(on_demand, size)), "OK OK MISS");
    EXPECT_EQ(pages.evictions(), 2u) << "as many as came";
    EXPECT_EQ(pages.text(*on_demand, 0), value_of(size, 1));
    EXPECT_EQ(pages.text(*on_demand, 1), value_of(size, 2));
    EXPECT_EQ(pages.lookup(3).writing, 2u);
    EXPECT_EQ(on_demand->commit(kAll), 2u);
    EXPECT_EQ(pages.lookup(3).ready, 2u);
  }
}

TEST(OnDemandPages, WhatIsHereOrHasNoRoomIsReadAway) {
  Store store;
  for (unsigned i = 0; i < 3; ++i)
    ASSERT_EQ(set(*store.connector, "k" + std::to_string(i), i), "OK");
  const Pages pages(2);
  pages.store(0, 1);
  const auto on_demand = pages.on_demand(3);
  EXPECT_EQ(run(*store.connector, job_of(on_demand)), "CANCELLED OK CANCELLED");
  EXPECT_EQ(on_demand->commit(kAll), 1u);
  EXPECT_EQ(pages.lookup(3).ready, 2u);
  std::vector<std::uint8_t> states(3);
  std::vector<std::uint64_t> handles(3);
  on_demand->states(states, handles);
  EXPECT_EQ(states, (std::vector<std::uint8_t>{2, 1, 3}));
  EXPECT_EQ(run(*store.connector, make_job({.verb = Verb::kExists}, {"k0"})), "OK")
      << "the connection goes on";
}

TEST(OnDemandPages, NothingComesInBehindAClear) {
  Store store;
  for (unsigned i = 0; i < 2; ++i)
    ASSERT_EQ(set(*store.connector, "k" + std::to_string(i), i), "OK");
  const Pages pages(2);
  const auto on_demand = pages.on_demand(2);
  ASSERT_NE(on_demand->buffer(0), nullptr);
  pages.cache->clear();
  EXPECT_EQ(run(*store.connector, job_of(on_demand)), "OK CANCELLED");
  EXPECT_EQ(on_demand->commit(kAll), 0u);
  EXPECT_EQ(pages.lookup(2).ready, 0u);
  EXPECT_EQ(pages.used(), 0u);
}

TEST(OnDemandPages, WhatIsNotWantedAnyMoreGetsNoPageAndItsPagesComeBack) {
  Store store;
  for (unsigned i = 0; i < 3; ++i)
    ASSERT_EQ(set(*store.connector, "k" + std::to_string(i), i), "OK");
  const Pages pages(3);
  const auto on_demand = pages.on_demand(3);
  on_demand->keep(2);
  EXPECT_EQ(pages.used(), 2u) << "whoever says that it comes has pages for it";
  on_demand->keep(1);
  EXPECT_EQ(run(*store.connector, job_of(on_demand)), "OK OK CANCELLED");
  on_demand->abort();
  EXPECT_EQ(pages.used(), 0u);
  const auto unwanted = pages.on_demand(3);
  unwanted->keep(0);
  EXPECT_EQ(run(*store.connector, job_of(unwanted)), "CANCELLED CANCELLED CANCELLED");
  EXPECT_EQ(pages.used(), 0u);
}

TEST(OnDemandPages, AParentThatComesBehindItsChildIsItsParentStill) {
  const Pages pages(3);
  const auto on_demand = pages.on_demand(3);
  for (const std::size_t index : {2u, 0u, 1u}) ASSERT_NE(on_demand->buffer(index), nullptr);
  EXPECT_EQ(on_demand->commit(kAll), 3u);
  const auto gone = pages.cache->evict(1);
  const auto bytes = Pages::hashes(2, 1);
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_TRUE(gone[0] == cache::Hashes(bytes)[0]) << "leaves go first";
}

TEST(OnDemandPages, ValuesThatAreNotWhatTheyShouldBeCostNoPage) {
  Store store;
  store.server.put("p:k0", "no frame");
  const Pages pages(1);
  const auto on_demand = pages.on_demand(1);
  EXPECT_EQ(run(*store.connector, job_of(on_demand)), "CORRUPT");
  EXPECT_EQ(pages.used(), 0u);
}

TEST(OnDemandPages, OnlyReadsTakePagesAndOnlyWhereTheStoreSaysSo) {
  Store store;
  const Pages pages(1);
  auto job = std::make_shared<Job>(Job::Options{.verb = Verb::kExists});
  job->add("k0", {});
  job->source = pages.on_demand(1);
  EXPECT_FALSE(store.connector->submit(job));
}

// Stripes of one value come on several connections, while others store, clear and give up.
TEST(OnDemandPages, ManyAtOnceWithCancelsAndClears) {
  Store store({}, kSize);
  constexpr std::size_t kKeys = 4;
  for (unsigned i = 0; i < kKeys; ++i) {
    ASSERT_EQ(set(*store.connector, "k" + std::to_string(i), i), "OK");
  }
  const Pages pages(6, kSize);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0}, hangs{0};
  for (unsigned thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (unsigned round = 0; round < 10; ++round) {
        const auto on_demand = pages.on_demand(kKeys);
        const auto job = job_of(on_demand, kSize);
        const auto id = store.connector->submit(job);
        if (!id) continue;
        if (round % 3 == 0) on_demand->keep(round % 4);
        if (thread == 0 && round % 4 == 1) store.connector->cancel(*id);
        if (thread == 1 && round % 5 == 2) pages.cache->clear();
        if (!job->wait(monotonic_ns() + kPatience)) ++hangs;
        std::uint8_t ok[kKeys] = {};
        for (std::size_t key = 0; key < kKeys; ++key) ok[key] = job->status(key) == Status::kOk;
        on_demand->commit(ok);
        const auto bytes = Pages::hashes(0, kKeys);
        const auto lease = pages.cache->acquire(cache::Hashes(bytes), 100 * kSecond);
        for (unsigned key = 0; key < lease.pages.size(); ++key) {
          const auto memory = pages.pool->lease(mem::PageHandle::unpack(lease.pages[key]));
          if (!memory) continue;  // it was cleared
          if (as_text(*memory) != value_of(kSize, key)) ++wrong;
          EXPECT_TRUE(pages.pool->release(mem::PageHandle::unpack(lease.pages[key])));
        }
        pages.cache->release(lease.id);
        pages.cache->evict(2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(hangs.load(), 0);
  pages.cache->clear();
  EXPECT_EQ(pages.used(), 0u);
}

}  // namespace
}  // namespace kvferry::connector
