// PagePool over a shared segment: pages come into use and leave it, and their memory with them.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "mem/page_pool.hpp"
#include "mem/test_segment.hpp"

namespace kvferry::mem {
namespace {

struct Fixture {
  explicit Fixture(std::size_t page_size_bytes, std::size_t pages_count) {
    const std::size_t size = PagePool::stride_of(page_size_bytes) * pages_count;
    segment = std::move(*SharedSegment::create(path.text, size));
    pool = std::move(*PagePool::over(segment, page_size_bytes, pages_count));
  }
  std::size_t grow(std::size_t count) {
    const auto grown = pool->grow(count);
    EXPECT_FALSE(grown.error.has_value());
    return grown.count;
  }
  std::size_t shrink(std::size_t count) {
    const auto shrunk = pool->shrink(count);
    EXPECT_FALSE(shrunk.error.has_value());
    return shrunk.count;
  }

  TestPath path;
  std::shared_ptr<SharedSegment> segment;
  std::unique_ptr<PagePool> pool;
};

// Whether this process has a page table entry for it.
bool is_mapped(const std::byte* address) {
  const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const auto page = reinterpret_cast<std::uintptr_t>(address) / 4096;
  std::uint64_t entry = 0;
  EXPECT_EQ(::pread(pagemap.get(), &entry, sizeof entry, static_cast<off_t>(page * sizeof entry)),
            static_cast<ssize_t>(sizeof entry));
  return entry >> 63 != 0;
}

TEST(SharedPool, HandsOutOnlyWhatWasGrantedAndThatHasMemory) {
  Fixture f(8192, 4);
  EXPECT_EQ(f.pool->stats().pages_count, 4u);
  EXPECT_EQ(f.pool->stats().granted_count, 0u);
  EXPECT_FALSE(f.pool->allocate().has_value());
  EXPECT_EQ(f.grow(2), 2u);
  EXPECT_EQ(f.path.backed_bytes(), 16384u);
  EXPECT_EQ(f.pool->stats().free_count, 2u);
  EXPECT_EQ(f.pool->stats().granted_count, 2u);
  std::set<std::uint32_t> indexes;
  for (int i = 0; i < 2; ++i) indexes.insert(f.pool->allocate()->index);
  EXPECT_EQ(indexes, (std::set<std::uint32_t>{0, 1})) << "the lowest";
  EXPECT_FALSE(f.pool->allocate().has_value());
  EXPECT_EQ(f.grow(9), 2u) << "there are no more";
  EXPECT_EQ(f.grow(1), 0u);
  EXPECT_EQ(f.pool->stats().used_count_max, 2u);
  EXPECT_EQ(f.path.backed_bytes(), 32768u);
}

TEST(SharedPool, HoldsBackFreePagesOnly) {
  Fixture f(4096, 4);
  f.grow(4);
  std::array<PageHandle, 4> pages{};
  ASSERT_TRUE(f.pool->allocate_many(pages));
  ASSERT_TRUE(f.pool->lease(pages[1]).has_value());
  ASSERT_TRUE(f.pool->free(pages[1]).has_value());  // retired: somebody still writes
  ASSERT_TRUE(f.pool->free(pages[2]).has_value());
  (*f.pool->bytes(pages[3]))[0] = std::byte{7};
  EXPECT_EQ(f.shrink(9), 1u);
  EXPECT_EQ(f.path.backed_bytes(), 3 * 4096u);
  EXPECT_EQ(f.pool->stats().granted_count, 3u);
  EXPECT_EQ(f.pool->stats().free_count, 0u);
  EXPECT_EQ((*f.pool->bytes(pages[3]))[0], std::byte{7});
  ASSERT_TRUE(f.pool->release(pages[1]).has_value());
  EXPECT_EQ(f.shrink(9), 1u);
  EXPECT_FALSE(f.pool->free(pages[2]).has_value()) << "its handle is stale";
  EXPECT_EQ(f.grow(1), 1u);
  EXPECT_EQ(f.pool->allocate()->index, std::min(pages[1].index, pages[2].index));
}

TEST(SharedPool, PagesThatLeaveAreZeroWhenTheyComeBack) {
  Fixture f(4096, 1);
  f.grow(1);
  const auto before = *f.pool->allocate();
  (*f.pool->bytes(before))[17] = std::byte{7};
  ASSERT_TRUE(f.pool->free(before).has_value());
  EXPECT_EQ(f.shrink(1), 1u);
  EXPECT_EQ(f.path.backed_bytes(), 0u);
  f.grow(1);
  const auto after = *f.pool->allocate();
  EXPECT_NE(after, before);
  EXPECT_EQ((*f.pool->bytes(after))[17], std::byte{0});
}

// 64 pages of 64 bytes share a block: it goes with the last of them.
TEST(SharedPool, ABlockOfSeveralPagesStaysWhileOneIsGranted) {
  Fixture f(64, 96);
  f.grow(96);
  EXPECT_EQ(f.path.backed_bytes(), 8192u);
  std::vector<PageHandle> pages(96);
  ASSERT_TRUE(f.pool->allocate_many(pages));
  std::byte& cell = (*f.pool->bytes(*std::ranges::find(pages, 63u, &PageHandle::index)))[63];
  cell = std::byte{9};
  for (const PageHandle page : pages) {
    if (page.index == 63) continue;
    ASSERT_TRUE(f.pool->free(page).has_value());
  }
  EXPECT_EQ(f.shrink(96), 95u);
  EXPECT_EQ(f.path.backed_bytes(), 4096u);
  EXPECT_EQ(cell, std::byte{9});
}

TEST(SharedPool, ClaimsCertainPagesWithTheirContent) {
  const TestPath path;
  {
    std::shared_ptr<SharedSegment> segment = std::move(*SharedSegment::create(path.text, 4 * 8192));
    auto pool = std::move(*PagePool::over(segment, 8000, 4));
    ASSERT_EQ(pool->grow(4).count, 4u);
    for (int i = 0; i < 4; ++i) {
      const auto page = *pool->allocate();
      std::ranges::fill(*pool->bytes(page), static_cast<std::byte>(page.index + 1));
    }
    segment->keep(true);
  }
  std::shared_ptr<SharedSegment> segment = std::move(*SharedSegment::open(path.text, 4 * 8192));
  auto pool = std::move(*PagePool::over(segment, 8000, 4));
  const auto page = pool->claim(2);
  ASSERT_TRUE(page.has_value());
  EXPECT_EQ(page->index, 2u);
  EXPECT_FALSE(pool->claim(2).has_value()) << "in use";
  EXPECT_EQ(pool->claim(4).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(path.backed_bytes(), 4 * 8192u);
  ASSERT_TRUE(pool->trim().has_value());
  EXPECT_EQ(path.backed_bytes(), 8192u);
  EXPECT_TRUE(
      std::ranges::all_of(*pool->bytes(*page), [](std::byte b) { return b == std::byte{3}; }));
  ASSERT_EQ(pool->grow(4).count, 3u);
  const auto other = pool->claim(0);  // free by now
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(pool->stats().free_count, 2u);
  EXPECT_EQ(pool->stats().granted_count, 4u);
  EXPECT_TRUE(pool->free(*page).has_value() && pool->free(*other).has_value());
  EXPECT_EQ(pool->stats().free_count, 4u);
}

TEST(SharedPool, APrefaultedPageIsMappedWhenItIsGranted) {
  for (const bool prefault : {true, false}) {
    const TestPath path;
    std::shared_ptr<SharedSegment> segment = std::move(*SharedSegment::create(path.text, 65536));
    const auto pool = std::move(*PagePool::over(segment, 65536, 1, prefault));
    ASSERT_EQ(pool->grow(1).count, 1u);
    EXPECT_EQ(is_mapped((*pool->bytes(*pool->allocate())).data()), prefault);
  }
}

TEST(SharedPool, RefusesSegmentsThatAreTooShort) {
  const TestPath path;
  std::shared_ptr<SharedSegment> segment = std::move(*SharedSegment::create(path.text, 8192));
  EXPECT_TRUE(PagePool::over(segment, 4096, 2).has_value());
  EXPECT_FALSE(PagePool::over(segment, 4097, 2).has_value());
  EXPECT_FALSE(PagePool::over(segment, 0, 2).has_value());
  EXPECT_FALSE(PagePool::over(nullptr, 4096, 1).has_value());
}

TEST(SharedPool, PrivatePoolsHoldNothingBack) {
  const auto pool = std::move(*PagePool::create(64, 3));
  EXPECT_EQ(pool->stats().granted_count, 3u);
  EXPECT_TRUE(pool->grow(1).error.has_value());
  EXPECT_TRUE(pool->shrink(1).error.has_value());
  EXPECT_FALSE(pool->claim(0).has_value());
  EXPECT_FALSE(pool->trim().has_value());
  EXPECT_EQ(pool->stats().free_count, 3u);
}

// In a mount of its own with room for three pages and a half.
int grow_beyond_the_file_system() {
  if (::unshare(CLONE_NEWNS) != 0) return 77;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
  if (::mount("none", "/dev/shm", "tmpfs", 0, "size=28k") != 0) return 77;
  const TestPath path;
  std::shared_ptr<SharedSegment> segment = std::move(*SharedSegment::create(path.text, 8 * 8192));
  const auto pool = std::move(*PagePool::over(segment, 8192, 8));
  const auto grown = pool->grow(8);
  if (grown.count != 3 || !grown.error || grown.error->code != Errc::kSystem) return 1;
  if (grown.error->context.find("/dev/shm") == std::string::npos) return 2;
  if (path.backed_bytes() != 3 * 8192 || pool->stats().free_count != 3) return 3;
  if (pool->claim(5).has_value()) return 4;
  for (int i = 0; i < 3; ++i) std::ranges::fill(*pool->bytes(*pool->allocate()), std::byte{1});
  if (pool->allocate().has_value() || pool->shrink(8).count != 0) return 5;
  return 0;
}

TEST(SharedPool, StopsWhereTheSystemHasNoMemory) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(grow_beyond_the_file_system());
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "not allowed to mount";
  EXPECT_EQ(status, 0);
}

// On huge pages, where the host has reserved some: four pages share one.
int grow_on_huge_pages() {
  if (::unshare(CLONE_NEWNS) != 0) return 77;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
  if (::mount("none", "/dev/shm", "hugetlbfs", 0, "pagesize=2M,size=4M") != 0) return 77;
  const TestPath path;
  auto made = SharedSegment::create(path.text, 8 * kMiB);
  if (!made) return 1;
  std::shared_ptr<SharedSegment> segment = std::move(*made);
  if (segment->block_size_bytes() != 2 * kMiB) return 2;
  if (segment->arena().huge_pages() != HugePages::kHugetlb) return 3;
  if (!segment->commit(2 * kMiB, 1)) return 77;  // none are free
  if (!segment->discard(0, 8 * kMiB)) return 4;
  const auto pool = std::move(*PagePool::over(segment, 512 * kKiB, 16));
  const auto grown = pool->grow(16);
  if (grown.count != 8 || !grown.error) return 5;
  if (grown.error->context.find("nr_hugepages") == std::string::npos) return 6;
  std::array<PageHandle, 8> pages{};
  if (!pool->allocate_many(pages)) return 7;
  for (const PageHandle page : pages) {
    std::ranges::fill(*pool->bytes(page), std::byte{1});
    if (page.index != 5 && !pool->free(page)) return 8;
  }
  if (pool->shrink(16).count != 7 || path.backed_bytes() != 2 * kMiB) return 9;
  return pool->grow(16).count == 7 ? 0 : 10;
}

TEST(SharedPool, HugePagesGoWithTheLastPageInThem) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(grow_on_huge_pages());
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no huge pages, or no mount";
  EXPECT_EQ(status, 0);
}

// Pages are written while others come and go; nobody ever finds somebody else's bytes, or zeros.
TEST(SharedPool, GrowsAndShrinksUnderTheHandsOfThreads) {
  Fixture f(4096, 16);
  std::atomic<bool> stop{false};
  std::atomic<int> faults_count{0};
  const auto work = [&](std::byte stamp) {
    for (int round = 0; round < 3000; ++round) {
      const auto page = f.pool->allocate();
      if (!page) continue;
      const MutableBytes bytes = *f.pool->lease(*page);
      std::ranges::fill(bytes, stamp);
      if (!std::ranges::all_of(bytes, [&](std::byte b) { return b == stamp; })) ++faults_count;
      if (!f.pool->free(*page).has_value() || !f.pool->release(*page).has_value()) ++faults_count;
    }
  };
  const auto resize = [&] {
    while (!stop.load(std::memory_order_relaxed)) {
      if (f.pool->grow(5).error || f.pool->shrink(3).error) ++faults_count;
    }
  };
  {
    std::array<std::jthread, 2> resizers{std::jthread(resize), std::jthread(resize)};
    std::array<std::thread, 2> threads{std::thread(work, std::byte{1}),
                                       std::thread(work, std::byte{2})};
    for (auto& thread : threads) thread.join();
    stop = true;
  }
  EXPECT_EQ(faults_count, 0);
  const auto stats = f.pool->stats();
  EXPECT_EQ(stats.free_count, stats.granted_count);
  EXPECT_EQ(f.path.backed_bytes(), stats.granted_count * 4096);
}

}  // namespace
}  // namespace kvferry::mem
