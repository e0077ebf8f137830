#include "mem/arena.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace kvferry::mem {
namespace {

std::size_t resident_pages(MutableBytes bytes) {
  std::vector<unsigned char> present(bytes.size() / 4096);
  EXPECT_EQ(::mincore(bytes.data(), bytes.size(), present.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(present.begin(), present.end(), [](unsigned char flag) { return flag & 1; }));
}

bool is_mapped(const std::byte* address) {
  unsigned char present = 0;
  void* page = const_cast<std::byte*>(address);
  return ::mincore(page, 4096, &present) == 0;
}

TEST(Arena, IsZeroedWritableAndRoundedToPages) {
  auto arena = Arena::map(5000);
  ASSERT_TRUE(arena.has_value());
  EXPECT_EQ(arena->size_bytes(), 8192u);
  EXPECT_EQ(arena->huge_pages(), HugePages::kNone);
  for (std::byte& byte : arena->bytes()) {
    ASSERT_EQ(byte, std::byte{0});
    byte = std::byte{7};
  }
}

TEST(Arena, PrefaultMakesEveryPageResidentAndItsAbsenceNone) {
  auto warm = Arena::map(256 * kKiB);
  auto cold = Arena::map(256 * kKiB, {.prefault = false});
  ASSERT_TRUE(warm.has_value() && cold.has_value());
  EXPECT_EQ(resident_pages(warm->bytes()), 64u);
  EXPECT_EQ(resident_pages(cold->bytes()), 0u);
}

TEST(Arena, LargeOnesStartOnAHugePageBoundary) {
  auto arena = Arena::map(3 * kMiB + 1, {.prefault = false});
  ASSERT_TRUE(arena.has_value());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena->bytes().data()) % Arena::kHugePageSizeBytes,
            0u);
  EXPECT_EQ(arena->size_bytes(), 3 * kMiB + 4096);
  EXPECT_NE(arena->huge_pages(), HugePages::kHugetlb);  // never unless asked for
  arena->bytes().back() = std::byte{1};                 // the trimmed mapping is whole
}

TEST(Arena, HugetlbFallsBackAndSaysWhatItGot) {
  auto arena = Arena::map(2 * kMiB, {.hugetlb = true});
  ASSERT_TRUE(arena.has_value());
  EXPECT_GE(arena->size_bytes(), 2 * kMiB);
  arena->bytes().back() = std::byte{1};
  EXPECT_TRUE(name(arena->huge_pages()) != "?");
}

TEST(Arena, UnmapsOnceWhenMovedAround) {
  const std::byte* first_base = nullptr;
  const std::byte* second_base = nullptr;
  {
    auto first = Arena::map(4096);
    auto second = Arena::map(4096);
    ASSERT_TRUE(first.has_value() && second.has_value());
    first_base = first->bytes().data();
    second_base = second->bytes().data();
    Arena moved = std::move(*first);
    EXPECT_EQ(first->size_bytes(), 0u);
    moved = std::move(*second);
    EXPECT_EQ(moved.bytes().data(), second_base);
    EXPECT_TRUE(is_mapped(second_base));
  }
  EXPECT_FALSE(is_mapped(first_base));
  EXPECT_FALSE(is_mapped(second_base));
}

TEST(Arena, AForkedChildWritesItsOwnCopy) {
  auto arena = Arena::map(4096);
  ASSERT_TRUE(arena.has_value());
  std::byte& cell = arena->bytes()[0];
  cell = std::byte{1};
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool seen = cell == std::byte{1};
    cell = std::byte{2};
    ::_exit(seen ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(cell, std::byte{1});
}

TEST(Arena, RefusesImpossibleSizesAsErrors) {
  auto empty = Arena::map(0);
  auto vast = Arena::map(SIZE_MAX);
  auto beyond = Arena::map(SIZE_MAX / 4);  // 4 EiB: more than x86-64 or arm64 can address
  ASSERT_FALSE(empty.has_value());
  ASSERT_FALSE(vast.has_value());
  ASSERT_FALSE(beyond.has_value());
  EXPECT_EQ(empty.error().code, Errc::kInvalidArgument);
  EXPECT_EQ(vast.error().code, Errc::kInvalidArgument);
  EXPECT_EQ(beyond.error().code, Errc::kSystem);
}

}  // namespace
}  // namespace kvferry::mem
