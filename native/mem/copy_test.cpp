#include "mem/copy.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvferry::mem {
namespace {

// Lengths around a piece, and none; by no helpers and by many.
TEST(CopyMany, EveryByteOfEveryPiece) {
  for (const unsigned threads : {0u, 1u, 2u, 7u}) {
    std::vector<std::vector<std::byte>> from, to;
    std::vector<Copy> copies;
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kMiB - 1, kMiB, 3 * kMiB + 5}) {
      auto& source = from.emplace_back(size);
      for (std::size_t i = 0; i < size; ++i) source[i] = std::byte(i * 31 + i / 977);
      to.emplace_back(size);
    }
    for (std::size_t i = 0; i < from.size(); ++i) copies.push_back({to[i], from[i]});
    copy_many(copies, threads);
    EXPECT_EQ(to, from) << threads;
  }
  copy_many({}, 4);
}

}  // namespace
}  // namespace kvferry::mem
