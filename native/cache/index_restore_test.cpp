// What one index writes down another takes over: the same chunks, parents, pages and order.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "cache/index.hpp"
#include "cache/test_requests.hpp"

namespace kvferry::cache {
namespace {

// Pages 1, 2, ...
class CountedPages final : public PageSource {
 public:
  std::optional<std::uint64_t> take() override { return ++last_; }
  void give_back(std::uint64_t page) noexcept override { given_back.insert(page); }

  std::multiset<std::uint64_t> given_back;

 private:
  std::uint64_t last_ = 0;
};

struct Fixture {
  explicit Fixture(std::size_t capacity, const char* policy = "LRU", bool leaf_first = true) {
    index = std::move(*Index::create(capacity, policy, leaf_first, &pages));
  }
  void store(Hashes hashes) {
    index->touch(hashes);
    std::vector<ChunkRef> refs;
    std::vector<std::uint32_t> indices;
    index->reserve(hashes, 0, refs, indices);
    index->commit(refs);
  }
  std::vector<ChunkHash> evict_all() {
    std::vector<ChunkHash> hashes;
    index->evict(SIZE_MAX, hashes);
    return hashes;
  }

  CountedPages pages;
  std::unique_ptr<Index> index;
};

// A tree of prompts, some of them used again and some in part.
void use_at_random(Fixture& f, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    std::vector<std::uint64_t> request{1};
    const auto length = 1 + random() % 6;
    while (request.size() < length) request.push_back(request.back() * 3 + random() % 3);
    f.store(Request(request));
  }
}

TEST(IndexRestore, TheSameChunksWithTheSamePagesAndParents) {
  for (const char* policy : kAllPolicies) {
    for (const bool leaf_first : {true, false}) {
      Fixture before(40, policy, leaf_first), after(40, policy, leaf_first);
      use_at_random(before, 7);
      const auto list = before.index->residents();
      ASSERT_EQ(list.size(), before.index->stats().ready);
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].parent == kNone) continue;
        ASSERT_TRUE(leaf_first);
        ASSERT_LT(list[i].parent, i) << policy;
        EXPECT_EQ(list[list[i].parent].hash.low, list[i].hash.low / 3) << policy;
      }
      EXPECT_EQ(after.index->restore(list), list.size());
      for (const auto& chunk : list) {
        const auto ref = after.index->ready(chunk.hash);
        ASSERT_TRUE(ref.has_value());
        EXPECT_EQ(after.index->page(*ref), chunk.page);
      }
      EXPECT_EQ(after.index->stats().ready, list.size());
      EXPECT_EQ(after.index->stats().writing, 0u);
      EXPECT_TRUE(after.pages.given_back.empty());
      // Children go before their parents, so all of it can go.
      EXPECT_EQ(after.evict_all().size(), list.size()) << policy;
      EXPECT_EQ(after.pages.given_back.size(), list.size());
    }
  }
}

TEST(IndexRestore, WhoWasToGoFirstStillIs) {
  for (const char* policy : {"LRU", "FIFO"}) {
    for (const bool leaf_first : {true, false}) {
      for (std::uint32_t seed = 0; seed < 20; ++seed) {
        Fixture before(40, policy, leaf_first), after(40, policy, leaf_first);
        use_at_random(before, seed);
        after.index->restore(before.index->residents());
        EXPECT_EQ(after.evict_all(), before.evict_all()) << policy << leaf_first << seed;
      }
    }
  }
}

TEST(IndexRestore, WhatIsBeingWrittenIsNotWrittenDown) {
  Fixture f(8);
  f.store(Request{1, 2});
  std::vector<ChunkRef> refs;
  std::vector<std::uint32_t> indices;
  f.index->reserve(Request{1, 2, 3, 4}, 0, refs, indices);
  const std::vector<ChunkRef> last{refs[1]};
  f.index->commit(last);  // 4 is ready, its parent is not
  const auto list = f.index->residents();
  ASSERT_EQ(list.size(), 3u);
  for (const auto& chunk : list) {
    EXPECT_NE(chunk.hash, hash_of(3));
    const bool has_parent = chunk.hash == hash_of(2);
    ASSERT_EQ(chunk.parent != kNone, has_parent);
    if (has_parent) EXPECT_EQ(list[chunk.parent].hash, hash_of(1));
  }
}

TEST(IndexRestore, PagesOfWhatFindsNoRoomAreGivenBack) {
  Fixture before(6), after(3);
  before.store(run(1, 6));
  after.store(run(1, 1));
  const auto list = before.index->residents();
  EXPECT_EQ(after.index->restore(list), 2u);
  EXPECT_EQ(after.index->lookup(run(1, 6)).ready, 3u) << "the first of them: a prefix";
  EXPECT_EQ(after.pages.given_back.size(), 4u) << "one is there already, three have no room";
  EXPECT_EQ(after.index->stats().evictions, 0u);
}

TEST(IndexRestore, AChunkThatIsLeftOutLeavesItsChildrenAsRoots) {
  Fixture before(4), after(4);
  before.store(run(1, 4));
  auto list = before.index->residents();
  for (auto& chunk : list) {
    if (chunk.hash == hash_of(2)) chunk.page = 0;
  }
  EXPECT_EQ(after.index->restore(list), 3u);
  EXPECT_EQ(after.index->lookup(run(1, 4)).ready, 1u);
  after.store(run(1, 4));  // it comes back, and is the parent again
  EXPECT_EQ(after.index->lookup(run(1, 4)).ready, 4u);
  std::vector<ChunkHash> gone;
  after.index->evict(1, gone);
  EXPECT_EQ(gone.front(), hash_of(4));
}

}  // namespace
}  // namespace kvferry::cache
