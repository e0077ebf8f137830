#include "mem/copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mem/copy_past_caches.hpp"

namespace kvferry::mem {
namespace {

constexpr std::byte kFence{0xEE};

std::vector<std::byte> numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

TEST(CopyPastCaches, CopiesEveryByteAndNoOtherAtEveryAlignment) {
  const auto source = numbered(8192);
  for (const std::size_t size : {0U, 1U, 15U, 63U, 64U, 65U, 127U, 128U, 1000U, 4096U, 5001U}) {
    for (std::size_t shift = 0; shift < 130; shift += shift < 66 ? 1 : 13) {
      std::vector<std::byte> target(size + 300, kFence);
      const std::size_t from = (7 * shift) % 64;
      copy_past_caches(MutableBytes(target).subspan(shift, size),
                       ByteView(source).subspan(from, size));
      for (std::size_t i = 0; i < target.size(); ++i) {
        const bool inside = i >= shift && i < shift + size;
        ASSERT_EQ(target[i], inside ? source[from + i - shift] : kFence)
            << size << " bytes at " << shift << ", byte " << i;
      }
    }
  }
}

// Below and above what goes around the caches; lengths that are no whole pieces.
TEST(CopyMany, CopiesEveryByteWithAnyNumberOfThreads) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1000}, 3 * kMiB + 17}) {
    for (const unsigned threads : {0U, 1U, 3U}) {
      constexpr std::size_t kCount = 5;
      const auto source = numbered(kCount * size);
      std::vector<std::byte> target(kCount * (size + 1), kFence);
      std::vector<Copy> copies;
      for (std::size_t i = 0; i < kCount; ++i) {  // the targets lie in another order
        copies.push_back({MutableBytes(target).subspan((kCount - 1 - i) * (size + 1), size),
                          ByteView(source).subspan(i * size, size)});
      }
      copy_many(copies, threads);
      for (std::size_t i = 0; i < kCount; ++i) {
        const auto got = ByteView(target).subspan((kCount - 1 - i) * (size + 1), size + 1);
        EXPECT_TRUE(std::ranges::equal(got.first(size), copies[i].from));
        EXPECT_EQ(got[size], kFence);
      }
    }
  }
}

}  // namespace
}  // namespace kvferry::mem
