#include "cache/index.hpp"

#include <gtest/gtest.h>

#include <string>

#include "cache/test_requests.hpp"

namespace kvferry::cache {
namespace {

struct Fixture {
  explicit Fixture(std::size_t capacity, const char* policy = "LRU", bool leaf_first = true)
      : index(std::move(*Index::create(capacity, policy, leaf_first))) {}

  // How many became ready.
  std::size_t store(Hashes hashes, std::size_t first = 0) {
    std::vector<ChunkRef> refs;
    indices.clear();
    index->reserve(hashes, first, refs, indices);
    return index->commit(refs);
  }
  Known known(std::uint64_t number) const { return index->known(hash_of(number)); }
  std::vector<ChunkHash> evict(std::size_t count) {
    std::vector<ChunkHash> hashes;
    index->evict(count, hashes);
    return hashes;
  }

  std::unique_ptr<Index> index;
  std::vector<std::uint32_t> indices;
};

TEST(Index, AChunkIsWritingThenReady) {
  Fixture f(4);
  std::vector<ChunkRef> refs;
  EXPECT_EQ(f.index->reserve(run(1, 3), 0, refs, f.indices), 0u);
  EXPECT_EQ(f.indices, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(f.index->lookup(run(1, 3)).writing, 3u);
  EXPECT_EQ(f.known(1), Known::kWriting);
  EXPECT_FALSE(f.index->ready(hash_of(1)).has_value());
  const std::uint8_t ok[] = {1, 0, 1};
  EXPECT_EQ(f.index->commit(refs, ok), 2u);
  EXPECT_EQ(f.index->lookup(run(1, 3)).ready, 1u);
  EXPECT_EQ(f.known(2), Known::kAbsent);
  EXPECT_EQ(f.known(3), Known::kReady);
  EXPECT_EQ(f.index->commit(refs), 0u);  // once is enough
}

TEST(Index, OnlyTheAbsentOnesBehindFirstAreReserved) {
  Fixture f(8);
  f.store(Request{1, 2});
  std::vector<ChunkRef> writing;
  f.index->reserve(Request{1, 2, 3}, 0, writing, f.indices);
  f.indices.clear();
  std::vector<ChunkRef> refs;
  EXPECT_EQ(f.index->reserve(run(1, 6), 4, refs, f.indices), 0u);
  EXPECT_EQ(f.indices, (std::vector<std::uint32_t>{4, 5}));
  EXPECT_EQ(f.known(4), Known::kAbsent);
}

TEST(Index, ARequestNeverEvictsItsOwnChunksAndShedsItsTail) {
  for (const char* policy : kAllPolicies) {
    for (const bool leaf_first : {true, false}) {
      Fixture f(4, policy, leaf_first);
      EXPECT_EQ(f.store(run(1, 3)), 3u);
      std::vector<ChunkRef> refs;
      f.indices.clear();
      EXPECT_EQ(f.index->reserve(run(1, 9), 0, refs, f.indices), 5u) << policy;
      EXPECT_EQ(f.indices, (std::vector<std::uint32_t>{3}));
      EXPECT_EQ(f.index->commit(refs), 1u);
      EXPECT_EQ(f.index->lookup(run(1, 9)).ready, 4u);
      EXPECT_EQ(f.index->stats().shed, 5u);
      EXPECT_EQ(f.index->stats().evictions, 0u);
    }
  }
}

TEST(Index, LeavesGoBeforeTheirParents) {
  for (const char* policy : kAllPolicies) {
    Fixture f(6, policy);
    f.store(Request{1, 2, 3});
    f.store(Request{1, 4, 5});
    for (const auto& hash : f.evict(2))
      EXPECT_TRUE(hash == hash_of(3) || hash == hash_of(5) || hash == hash_of(2) ||
                  hash == hash_of(4));
    EXPECT_EQ(f.known(1), Known::kReady) << policy;
    EXPECT_EQ(f.evict(10).back(), hash_of(1)) << policy;
    EXPECT_EQ(f.index->stats().evictions, 5u);
  }
}

TEST(Index, InPlainOrderTheOldestGoesWhoeverNeedsIt) {
  Fixture f(3, "LRU", false);
  f.store(Request{1, 2, 3});
  EXPECT_EQ(f.evict(1).front(), hash_of(1));
}

TEST(Index, LeasedAndPinnedChunksStay) {
  for (const char* policy : kAllPolicies) {
    Fixture f(6, policy);
    f.store(Request{1});
    f.store(Request{2});
    f.store(Request{3});
    std::vector<ChunkRef> refs;
    f.index->acquire(Request{1}, refs);
    EXPECT_EQ(f.index->pin(Request{2}), 1u);
    EXPECT_EQ(f.index->pin(Request{2}), 1u);
    EXPECT_EQ(f.known(1), Known::kLeased);
    EXPECT_EQ(f.known(2), Known::kPinned);
    EXPECT_EQ(f.evict(5), std::vector{hash_of(3)}) << policy;
    EXPECT_EQ(f.index->unpin(Request{2}), 1u);
    EXPECT_TRUE(f.evict(5).empty()) << policy;  // pins are counted
    EXPECT_EQ(f.index->unpin(Request{2}), 1u);
    EXPECT_EQ(f.index->unpin(Request{2}), 0u);
    EXPECT_EQ(f.evict(5), std::vector{hash_of(2)}) << policy;
    f.index->release(refs);
    EXPECT_EQ(f.evict(5), std::vector{hash_of(1)}) << policy;
    EXPECT_EQ(f.known(1), Known::kEvicted);
  }
}

TEST(Index, ALeaseOfARemovedChunkEndsQuietly) {
  Fixture f(4);
  f.store(Request{1});
  std::vector<ChunkRef> refs;
  f.index->acquire(Request{1}, refs);
  f.index->pin(Request{1});
  EXPECT_EQ(f.index->remove(Request{1, 2}), 1u);
  EXPECT_EQ(f.index->stats().leased + f.index->stats().pinned, 0u);
  f.store(Request{7});  // in the same slot
  EXPECT_FALSE(f.index->holds(refs[0]));
  f.index->release(refs);
  EXPECT_EQ(f.known(7), Known::kReady);
}

TEST(Index, AReservationOfARemovedChunkCommitsNothing) {
  Fixture f(4);
  std::vector<ChunkRef> refs;
  f.index->reserve(run(1, 2), 0, refs, f.indices);
  EXPECT_EQ(f.index->clear(), 2u);
  EXPECT_EQ(f.index->commit(refs), 0u);
  EXPECT_EQ(f.index->stats().writing, 0u);
}

TEST(Index, AGenerationChangesWhenAChunkIsStoredAnew) {
  Fixture f(4);
  f.store(Request{1});
  const auto before = f.index->ready(hash_of(1))->packed();
  f.index->remove(Request{1});
  f.store(Request{1});
  EXPECT_NE(f.index->ready(hash_of(1))->packed(), before);
}

// 2 and 3 came without their parent; when it comes, it may not go before them.
TEST(Index, AnOrphanIsAdoptedWhenItsParentComes) {
  Fixture f(4);
  f.store(Request{1, 2, 3}, 1);
  EXPECT_EQ(f.known(1), Known::kAbsent);
  f.store(Request{1});
  f.store(Request{1, 2, 3});
  EXPECT_EQ(f.evict(1).front(), hash_of(3));
  EXPECT_EQ(f.evict(1).front(), hash_of(2));
}

TEST(Index, ACircleOfDishonestHashesIsNotClosed) {
  Fixture f(8);
  f.store(Request{1, 2, 3});
  f.store(Request{3, 1});
  f.store(Request{2, 4, 1, 2});
  EXPECT_EQ(f.evict(8).size(), 4u);
}

TEST(Index, AChunkNamedTwiceIsOne) {
  Fixture f(8);
  std::vector<ChunkRef> refs;
  EXPECT_EQ(f.index->reserve(Request{1, 1, 2, 1}, 0, refs, f.indices), 0u);
  EXPECT_EQ(refs.size(), 2u);
  EXPECT_EQ(f.index->commit(refs), 2u);
  std::vector<ChunkRef> leases;
  f.index->acquire(Request{1, 1, 2}, leases);
  EXPECT_EQ(leases.size(), 3u);
  f.index->release(leases);
  EXPECT_EQ(f.index->stats().leased, 0u);
  EXPECT_EQ(f.evict(8).size(), 2u);
}

TEST(Index, AMissOfAnEvictedChunkIsCountedAtTheFirstHole) {
  Fixture f(2);
  f.store(run(1, 2));
  f.evict(2);
  EXPECT_EQ(f.index->lookup(run(1, 2)).ready, 0u);
  EXPECT_EQ(f.index->stats().evicted_then_missed, 1u);
  f.index->lookup(Request{9, 1});
  EXPECT_EQ(f.index->stats().evicted_then_missed, 1u);
  f.store(run(1, 1));
  f.index->remove(run(1, 1));
  EXPECT_EQ(f.known(1), Known::kAbsent);  // stored since, so no longer remembered as evicted
}

TEST(Index, LeasesOfAChunkAreLimited) {
  Fixture f(4);
  f.store(Request{1});
  std::vector<ChunkRef> refs;
  for (int i = 0; i <= Index::kHoldersMax; ++i) f.index->acquire(Request{1}, refs);
  EXPECT_EQ(refs.size(), std::size_t{Index::kHoldersMax});
  f.index->release(refs);
  EXPECT_EQ(f.evict(1).size(), 1u);
}

TEST(Index, RefusesCapacitiesAndPoliciesThatCannotBe) {
  EXPECT_FALSE(Index::create(0, "LRU", true).has_value());
  EXPECT_FALSE(Index::create(Index::kCapacityMax + 1, "LRU", true).has_value());
  EXPECT_FALSE(Index::create(1, "random", true).has_value());
  for (const char* policy : kAllPolicies) {  // the smallest works
    Fixture f(1, policy);
    for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(f.store(Request{i % 3}), 1u);
    EXPECT_EQ(f.index->stats().ready, 1u);
  }
}

}  // namespace
}  // namespace kvferry::cache
