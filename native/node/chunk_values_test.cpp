#include "node/chunk_values.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "cache/test_requests.hpp"
#include "codec/checksum.hpp"
#include "codec/frame.hpp"

namespace kvferry::node {
namespace {

using cache::hash_of;
using cache::Request;
using cache::run;

constexpr std::string_view kPrefix = "kvf:id:";
constexpr std::uint64_t kIdentity = 42;

std::string key_of(std::uint64_t number, std::size_t stripe = 0) {
  std::array<std::byte, cache::kHashBytes> bytes{};
  hash_of(number).store(bytes.data());
  std::string key(kPrefix);
  for (const std::byte byte : bytes) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", std::to_integer<unsigned>(byte));
    key += text;
  }
  codec::append_stripe_suffix(key, stripe);
  return key;
}

class Heard final : public Changes {
 public:
  void changed(const std::vector<std::string>& keys) override {
    all.insert(all.end(), keys.begin(), keys.end());
  }
  void cleared() override { ++clears; }

  std::vector<std::string> all;
  int clears = 0;
};

struct Fixture {
  explicit Fixture(std::size_t size_bytes = 10'000, std::size_t pages = 8,
                   Changes* changes = nullptr)
      : chunk_bytes(size_bytes) {
    pool = std::move(*mem::PagePool::create(chunk_bytes, pages));
    cache = std::move(*cache::ChunkCache::create(pages, "LRU", true, pool));
    values = std::move(
        *ChunkValues::create(cache, std::string(kPrefix), kIdentity, chunk_bytes, changes));
  }
  // Each chunk's bytes follow from its number.
  static std::byte byte_of(std::uint64_t number, std::size_t at) {
    return static_cast<std::byte>(number * 31 + at % 251 + at / 4096);
  }
  void store(std::uint64_t first, std::size_t count) {
    const auto reserved = cache->reserve(run(first, count), 0, 60 * kSecond);
    for (std::size_t i = 0; i < reserved.indices.size(); ++i) {
      const auto page = pool->bytes(mem::PageHandle::unpack(reserved.pages[i]));
      for (std::size_t at = 0; at < chunk_bytes; ++at) {
        (*page)[at] = byte_of(first + reserved.indices[i], at);
      }
    }
    ASSERT_EQ(*cache->commit(reserved.id, {}), reserved.indices.size());
  }

  std::size_t chunk_bytes;
  std::shared_ptr<mem::PagePool> pool;
  std::shared_ptr<cache::ChunkCache> cache;
  std::unique_ptr<ChunkValues> values;
};

// All of a value, piece by piece.
std::vector<std::byte> bytes_of(const StoredValue& value) {
  std::vector<std::byte> all;
  while (all.size() < value.size_bytes()) {
    const ByteView piece = value.piece(all.size());
    all.insert(all.end(), piece.begin(), piece.end());
  }
  return all;
}

// What a reader does with it: the payload, or nothing where the frame is not the one asked for.
std::optional<std::vector<std::byte>> payload_of(const StoredValue& value, std::uint64_t number,
                                                 const codec::StripePlan& plan, std::size_t stripe,
                                                 std::uint64_t* generation = nullptr) {
  const std::vector<std::byte> all = bytes_of(value);
  codec::Frame frame;
  const auto header = std::span(all).first<codec::kFrameSizeBytes>();
  if (codec::decode_frame(header, frame) != codec::FrameFault::kNone) return std::nullopt;
  const codec::FrameExpectation expected{
      .identity = kIdentity,
      .key_digest = codec::xxh3_64(as_bytes(key_of(number))),
      .payload_size_bytes = codec::stripe_extent(plan, stripe).size_bytes,
      .original_size_bytes = plan.value_size_bytes,
      .stripe_index = static_cast<std::uint16_t>(stripe),
      .stripe_count = plan.count};
  if (codec::check_frame(frame, expected) != codec::FrameFault::kNone) return std::nullopt;
  const ByteView payload = std::span(all).subspan(codec::kFrameSizeBytes);
  if (codec::xxh3_64(payload) != frame.payload_checksum) return std::nullopt;
  if (generation != nullptr) *generation = frame.generation;
  return std::vector<std::byte>(payload.begin(), payload.end());
}

TEST(ChunkValues, AChunkIsTheFrameThatAStoreWouldAnswerAndItsPage) {
  Fixture f;
  f.store(1, 3);
  const auto plan = codec::stripe_plan(f.chunk_bytes);
  for (std::uint64_t number = 1; number <= 3; ++number) {
    const auto value = f.values->hold(key_of(number), 0);
    ASSERT_NE(value, nullptr);
    const auto payload = payload_of(*value, number, plan, 0);
    ASSERT_TRUE(payload);
    for (std::size_t at = 0; at < payload->size(); ++at) {
      ASSERT_EQ((*payload)[at], Fixture::byte_of(number, at));
    }
    EXPECT_EQ(f.values->facts(key_of(number), 0, false)->size_bytes, value->size_bytes());
  }
  EXPECT_EQ(f.values->hold(key_of(4), 0), nullptr);
  EXPECT_EQ(f.values->facts(key_of(4), 0, true), std::nullopt);
}

TEST(ChunkValues, StripesOfALargeChunkAreOfOneGeneration) {
  Fixture f(9 * kMiB, 2);
  f.store(5, 1);
  const auto plan = codec::stripe_plan(f.chunk_bytes);
  ASSERT_EQ(plan.count, 3);
  std::set<std::uint64_t> generations;
  for (std::size_t stripe = 0; stripe < plan.count; ++stripe) {
    const auto value = f.values->hold(key_of(5, stripe), 0);
    ASSERT_NE(value, nullptr);
    std::uint64_t generation = 0;
    const auto payload = payload_of(*value, 5, plan, stripe, &generation);
    ASSERT_TRUE(payload);
    EXPECT_EQ((*payload)[7], Fixture::byte_of(5, codec::stripe_extent(plan, stripe).offset + 7));
    generations.insert(generation);
  }
  EXPECT_EQ(generations.size(), 1u);
  EXPECT_EQ(f.values->hold(key_of(5, plan.count), 0), nullptr);
}

TEST(ChunkValues, OnlyOneSpellingIsAName) {
  Fixture f;
  f.store(1, 1);
  const std::string key = key_of(1);
  std::string upper = key;
  std::transform(upper.begin() + kPrefix.size(), upper.end(), upper.begin() + kPrefix.size(),
                 [](unsigned char c) { return std::toupper(c); });
  for (const std::string& other :
       {std::string(), std::string(kPrefix), key.substr(0, key.size() - 1), key + "0", key + "#",
        key + "#0", key + "#00", key + "#1", key + "#-1", key + "#99999999999999999999", key + ":",
        "x" + key, upper, key.substr(1), key + std::string(1, '\0')}) {
    EXPECT_EQ(f.values->hold(other, 0), nullptr) << other;
    EXPECT_EQ(f.values->facts(other, 0, false), std::nullopt) << other;
  }
}

TEST(ChunkValues, APageIsNobodyElsesWhileItIsHeld) {
  Fixture f(1000, 2);
  f.store(1, 2);
  auto held = f.values->hold(key_of(1), 0);
  const auto before = bytes_of(*held);
  f.cache->clear();
  f.store(10, 2);  // there is one page for two
  EXPECT_EQ(f.cache->stats().index.ready, 1u);
  EXPECT_EQ(bytes_of(*held), before);
  EXPECT_EQ(f.values->hold(key_of(1), 0), nullptr) << "it is gone for who asks next";
  held.reset();
  EXPECT_EQ(f.pool->stats().free_count, 1u);
  f.values.reset();
}

TEST(ChunkValues, AValueOutlivesWhoLentIt) {
  Fixture f;
  f.store(1, 1);
  const auto held = f.values->hold(key_of(1), 0);
  const auto before = bytes_of(*held);
  f.values.reset();
  f.cache.reset();
  f.pool.reset();
  EXPECT_EQ(bytes_of(*held), before);
}

TEST(ChunkValues, NobodyWritesRemovesOrClears) {
  Fixture f;
  f.store(1, 1);
  EXPECT_EQ(f.values->reserve(10, 10).error().code, Errc::kInvalidArgument);
  EXPECT_FALSE(f.values->remove(key_of(1), 0));
  f.values->clear();
  EXPECT_NE(f.values->hold(key_of(1), 0), nullptr);
}

TEST(ChunkValues, WhatIsAskedForIsUsedAndWhatIsLookedAtIsNot) {
  Fixture f(1000, 3);
  f.store(1, 1);
  f.store(2, 1);
  f.store(3, 1);
  EXPECT_TRUE(f.values->facts(key_of(1), 0, true));
  EXPECT_TRUE(f.values->facts(key_of(2), 0, false));
  f.values->hold(key_of(3), 0);
  EXPECT_EQ(f.cache->evict(1).front(), hash_of(2));
}

TEST(ChunkValues, AScanSeesEveryChunkOnceHoweverSmallItsSteps) {
  Fixture f(1000, 8);
  f.store(1, 7);
  f.cache->remove(Request{3});
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{99}}) {
    std::multiset<std::string> seen;
    std::uint64_t cursor = 0;
    do {
      cursor = f.values->scan(cursor, count, 0, [&](std::string_view key) { seen.emplace(key); });
    } while (cursor != 0);
    EXPECT_EQ(seen,
              (std::multiset{key_of(1), key_of(2), key_of(4), key_of(5), key_of(6), key_of(7)}));
  }
  int visited = 0;
  EXPECT_EQ(f.values->scan(UINT64_MAX, 5, 0, [&](std::string_view) { ++visited; }), 0u);
  EXPECT_EQ(visited, 0);
}

TEST(ChunkValues, WhatComesAndGoesIsTold) {
  Heard heard;
  Fixture f(1000, 4, &heard);
  f.store(1, 2);
  f.cache->remove(Request{1});
  f.values->sweep(0);
  EXPECT_EQ(heard.all, (std::vector{key_of(2), key_of(1), key_of(1)}));
  f.values->sweep(0);
  EXPECT_EQ(heard.all.size(), 3u);
  for (int i = 0; i < 40'000; ++i) {
    f.store(7, 1);
    f.cache->remove(Request{7});
  }
  heard.all.clear();
  f.values->sweep(0);
  EXPECT_EQ(heard.clears, 1) << "too much to tell one by one";
  EXPECT_TRUE(heard.all.empty());
}

TEST(ChunkValues, ReadersBesideEvictionSeeWholeChunksOnly) {
  Fixture f(5000, 6);
  const auto plan = codec::stripe_plan(f.chunk_bytes);
  std::atomic<bool> stop = false;
  std::atomic<int> found = 0;
  std::vector<std::thread> readers;
  for (unsigned reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&, reader] {
      std::mt19937 random(reader);
      while (!stop) {
        const std::uint64_t number = random() % 20;
        const auto value = f.values->hold(key_of(number), 0);
        if (value == nullptr) continue;
        const auto payload = payload_of(*value, number, plan, 0);
        ASSERT_TRUE(payload);
        ASSERT_EQ(payload->back(), Fixture::byte_of(number, payload->size() - 1));
        ++found;
      }
    });
  }
  for (std::uint64_t round = 0; round < 3000 || found < 300; ++round) {
    const auto reserved = f.cache->reserve(run(round % 20, 1), 0, kSecond);
    if (reserved.indices.empty()) continue;
    const auto page = f.pool->bytes(mem::PageHandle::unpack(reserved.pages[0]));
    for (std::size_t at = 0; at < f.chunk_bytes; ++at)
      (*page)[at] = Fixture::byte_of(round % 20, at);
    ASSERT_TRUE(f.cache->commit(reserved.id, {}));
  }
  stop = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(f.cache->stats().leases, 0u);
}

TEST(ChunkValues, ACacheWithoutPagesIsRefused) {
  auto cache =
      std::shared_ptr<cache::ChunkCache>(std::move(*cache::ChunkCache::create(4, "LRU", true)));
  EXPECT_FALSE(ChunkValues::create(cache, "p:", 1, 100));
  auto pool = std::shared_ptr<mem::PagePool>(std::move(*mem::PagePool::create(64, 4)));
  cache = std::move(*cache::ChunkCache::create(4, "LRU", true, pool));
  EXPECT_FALSE(ChunkValues::create(cache, "p:", 1, 65));
  EXPECT_TRUE(ChunkValues::create(cache, "p:", 1, 64));
}

}  // namespace
}  // namespace kvferry::node
