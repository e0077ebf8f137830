#include "mem/page_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

namespace kvferry::mem {
namespace {

std::unique_ptr<PagePool> make_pool(std::size_t page_size_bytes, std::size_t pages_count) {
  auto pool = PagePool::create(page_size_bytes, pages_count);
  EXPECT_TRUE(pool.has_value());
  return std::move(*pool);
}

Errc code_of(const Outcome& outcome) {
  EXPECT_FALSE(outcome.has_value());
  return outcome.error().code;
}

TEST(PagePool, HandsOutEveryPageOnceThenNothing) {
  const auto pool = make_pool(100, 3);
  EXPECT_EQ(pool->page_stride_bytes(), 128u);
  std::array<std::byte*, 3> bases{};
  for (auto& base : bases) {
    const auto handle = pool->allocate();
    ASSERT_TRUE(handle.has_value());
    const auto bytes = pool->bytes(*handle);
    ASSERT_TRUE(bytes.has_value());
    EXPECT_EQ((*bytes).size(), 100u);
    base = (*bytes).data();
  }
  EXPECT_EQ(bases[1] - bases[0], 128);
  EXPECT_EQ(bases[2] - bases[1], 128);
  EXPECT_FALSE(pool->allocate().has_value());
}

TEST(PagePool, LargePagesStartOnPageBoundaries) {
  const auto pool = make_pool(4097, 2);
  EXPECT_EQ(pool->page_stride_bytes(), 8192u);
  EXPECT_EQ(make_pool(4096, 1)->page_stride_bytes(), 4096u);
  EXPECT_EQ(make_pool(4095, 1)->page_stride_bytes(), 4096u);
  EXPECT_EQ(make_pool(1, 1)->page_stride_bytes(), 64u);
  const auto handle = pool->allocate();
  ASSERT_TRUE(handle.has_value());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*pool->bytes(*handle)).data()) % 4096, 0u);
}

TEST(PagePool, FreedPagesComeBackWarmestFirstUnderANewHandle) {
  const auto pool = make_pool(64, 2);
  const auto first = pool->allocate();
  const auto second = pool->allocate();
  ASSERT_TRUE(first && second);
  ASSERT_TRUE(pool->free(*first).has_value());
  const auto again = pool->allocate();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->index, first->index);
  EXPECT_NE(*again, *first);
}

TEST(PagePool, StaleForeignAndDoubleFreesAreErrors) {
  const auto pool = make_pool(64, 2);
  const auto handle = pool->allocate();
  ASSERT_TRUE(handle.has_value());
  ASSERT_TRUE(pool->free(*handle).has_value());
  EXPECT_EQ(code_of(pool->free(*handle)), Errc::kInvalidArgument);
  const auto next = pool->allocate();  // the same page, another use
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(code_of(pool->free(*handle)), Errc::kInvalidArgument);
  EXPECT_FALSE(pool->bytes(*handle).has_value());
  EXPECT_FALSE(pool->lease(*handle).has_value());
  EXPECT_FALSE(pool->free(PageHandle{2, 1}).has_value());  // no such page
  EXPECT_FALSE(pool->free(PageHandle{1, 1}).has_value());  // never handed out
  EXPECT_FALSE(pool->free(PageHandle::unpack(0)).has_value());
  EXPECT_TRUE(pool->bytes(*next).has_value());
  EXPECT_EQ(pool->stats().free_count, 1u);
}

TEST(PagePool, ALeasedPageIsReusedOnlyAfterItsLastRelease) {
  const auto pool = make_pool(64, 1);
  const auto handle = pool->allocate();
  ASSERT_TRUE(handle.has_value());
  ASSERT_TRUE(pool->lease(*handle).has_value());
  ASSERT_TRUE(pool->lease(*handle).has_value());
  ASSERT_TRUE(pool->free(*handle).has_value());
  EXPECT_EQ(code_of(pool->free(*handle)), Errc::kInvalidArgument);
  EXPECT_FALSE(pool->lease(*handle).has_value());  // a retired page takes no new lease
  EXPECT_FALSE(pool->allocate().has_value());
  ASSERT_TRUE(pool->release(*handle).has_value());
  EXPECT_FALSE(pool->allocate().has_value());
  ASSERT_TRUE(pool->release(*handle).has_value());
  EXPECT_TRUE(pool->allocate().has_value());
  EXPECT_EQ(code_of(pool->release(*handle)), Errc::kInvalidArgument);
}

TEST(PagePool, AReleasedPageInUseStaysInUse) {
  const auto pool = make_pool(64, 1);
  const auto handle = pool->allocate();
  ASSERT_TRUE(handle.has_value());
  ASSERT_TRUE(pool->lease(*handle).has_value());
  ASSERT_TRUE(pool->release(*handle).has_value());
  EXPECT_FALSE(pool->release(*handle).has_value());
  EXPECT_EQ(pool->stats().free_count, 0u);
  EXPECT_TRUE(pool->free(*handle).has_value());
}

TEST(PagePool, ManyIsAllOrNothing) {
  const auto pool = make_pool(64, 4);
  std::array<PageHandle, 3> three{};
  ASSERT_TRUE(pool->allocate_many(three));
  EXPECT_EQ(pool->stats().free_count, 1u);
  std::array<PageHandle, 2> two{};
  EXPECT_FALSE(pool->allocate_many(two));
  EXPECT_EQ(two[0], PageHandle{});
  EXPECT_EQ(pool->stats().free_count, 1u);
  EXPECT_TRUE(pool->allocate_many({}));
}

TEST(PagePool, StatsKeepTheHighWaterMark) {
  const auto pool = make_pool(64, 4);
  std::array<PageHandle, 3> three{};
  ASSERT_TRUE(pool->allocate_many(three));
  for (const auto handle : three) ASSERT_TRUE(pool->free(handle).has_value());
  const auto stats = pool->stats();
  EXPECT_EQ(stats.pages_count, 4u);
  EXPECT_EQ(stats.free_count, 4u);
  EXPECT_EQ(stats.used_count_max, 3u);
}

TEST(PagePool, HandlesPackAndUnpack) {
  const PageHandle handle{7, 0xFFFFFFFF};
  EXPECT_EQ(handle.packed(), 0xFFFFFFFF'00000007u);
  EXPECT_EQ(PageHandle::unpack(handle.packed()), handle);
}

TEST(PagePool, RefusesSizesThatCannotBe) {
  EXPECT_FALSE(PagePool::create(0, 1).has_value());
  EXPECT_FALSE(PagePool::create(1, 0).has_value());
  EXPECT_FALSE(PagePool::create(1, std::size_t{1} << 32).has_value());
  EXPECT_FALSE(PagePool::create(SIZE_MAX, 2).has_value());
  EXPECT_FALSE(PagePool::create(SIZE_MAX / 2, 1).has_value());
}

// Each thread stamps its pages and finds its stamp again: no page has two owners at one time.
TEST(PagePool, ThreadsNeverShareAPage) {
  const auto pool = make_pool(64, 8);
  std::atomic<int> faults_count{0};
  const auto work = [&](std::byte stamp) {
    for (int round = 0; round < 2000; ++round) {
      std::array<PageHandle, 2> handles{};
      if (!pool->allocate_many(handles)) continue;
      for (const auto handle : handles) std::ranges::fill(*pool->lease(handle), stamp);
      for (const auto handle : handles) {
        const auto bytes = *pool->bytes(handle);
        const bool intact = std::ranges::all_of(bytes, [&](std::byte b) { return b == stamp; });
        const bool freed = pool->free(handle).has_value() && pool->release(handle).has_value();
        if (!intact || !freed) ++faults_count;
      }
    }
  };
  {
    std::array<std::jthread, 4> threads;
    for (std::size_t i = 0; i < threads.size(); ++i) {
      threads[i] = std::jthread(work, static_cast<std::byte>(i + 1));
    }
  }
  EXPECT_EQ(faults_count, 0);
  EXPECT_EQ(pool->stats().free_count, 8u);
}

}  // namespace
}  // namespace kvferry::mem
