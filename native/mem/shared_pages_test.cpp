#include "mem/shared_pages.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "mem/test_segment.hpp"

namespace kvferry::mem {
namespace {

constexpr std::uint64_t kLock = std::uint64_t{1} << 61;

Errc code_of(const auto& result) {
  EXPECT_FALSE(result.has_value());
  return result.error().code;
}

struct Fixture {
  Fixture() {
    owner = std::move(*SharedSegment::create(path.text, 4 * 8192));
    EXPECT_TRUE(owner->commit(0, 3 * 8192).has_value());
    pages = std::move(*SharedPages::attach(path.text, 4 * 8192, {8192, 5000, 4}, kLock));
  }

  TestPath path;
  std::unique_ptr<SharedSegment> owner;
  std::shared_ptr<SharedPages> pages;
};

TEST(SharedPages, LieAtTheirStrides) {
  Fixture f;
  EXPECT_EQ(f.pages->geometry().count, 4u);
  EXPECT_EQ(f.pages->page(2).size(), 5000u);
  f.pages->page(2)[4999] = std::byte{1};
  EXPECT_EQ(f.owner->bytes()[2 * 8192 + 4999], std::byte{1});
  EXPECT_TRUE(*f.owner->lock_is_held(kLock));
  f.pages.reset();
  EXPECT_FALSE(*f.owner->lock_is_held(kLock));
}

TEST(SharedPages, APreparedPageIsMappedAndItsContentStays) {
  Fixture f;
  f.owner->bytes()[8192 + 4096] = std::byte{4};
  for (int twice = 0; twice < 2; ++twice) ASSERT_TRUE(f.pages->prepare(1).has_value());
  EXPECT_EQ(f.pages->page(1)[4096], std::byte{4});
  EXPECT_EQ(f.path.backed_bytes(), 3 * 8192u) << "no other page was touched";
}

TEST(SharedPages, PreparingEverythingBacksEverything) {
  Fixture f;
  ASSERT_TRUE(f.owner->commit(0, 4 * 8192).has_value());
  ASSERT_TRUE(f.pages->prepare_all().has_value());
  EXPECT_EQ(f.path.backed_bytes(), 4 * 8192u);
}

// Somebody cut the file: a copy would end the process.
TEST(SharedPages, APageWithoutMemoryBehindItIsAnError) {
  Fixture f;
  ASSERT_EQ(::truncate(f.path.text.c_str(), 8192), 0);
  if (::madvise(f.owner->bytes().data(), 4096, MADV_POPULATE_WRITE) != 0) GTEST_SKIP();
  EXPECT_EQ(code_of(f.pages->prepare(1)), Errc::kSystem);
  EXPECT_EQ(code_of(f.pages->prepare(1)), Errc::kSystem) << "every time";
  EXPECT_EQ(code_of(f.pages->prepare_all()), Errc::kSystem);
  EXPECT_TRUE(f.pages->prepare(0).has_value());
}

TEST(SharedPages, RefuseWhatDoesNotFit) {
  Fixture f;
  const auto attach = [&](PageGeometry geometry) {
    return code_of(SharedPages::attach(f.path.text, 4 * 8192, geometry, kLock + 1));
  };
  EXPECT_EQ(attach({8192, 5000, 5}), Errc::kInvalidArgument);
  EXPECT_EQ(attach({8192, 8193, 1}), Errc::kInvalidArgument);
  EXPECT_EQ(attach({8192, 0, 1}), Errc::kInvalidArgument);
  EXPECT_EQ(attach({8192, 1, 0}), Errc::kInvalidArgument);
  EXPECT_EQ(attach({SIZE_MAX, 1, SIZE_MAX}), Errc::kInvalidArgument);
  EXPECT_FALSE(*f.owner->lock_is_held(kLock + 1));
}

}  // namespace
}  // namespace kvferry::mem
