#include "cache/chunk_hash.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace kvferry::cache {
namespace {

std::string hex(ByteView bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<int>(b) >> 4];
    text += kDigits[std::to_integer<int>(b) & 15];
  }
  return text;
}

std::vector<std::byte> hashes_of(const std::vector<std::uint32_t>& tokens, std::size_t chunk_size,
                                 const ChunkHash& parent) {
  std::vector<std::byte> hashes(tokens.size() / chunk_size * kHashBytes);
  EXPECT_TRUE(hash_chunks(tokens, chunk_size, parent, hashes));
  return hashes;
}

// The values are those of kvferry.chunks.keys.
TEST(ChunkHash, IsTheSpecifiedOne) {
  std::vector<std::uint32_t> tokens(10);
  std::iota(tokens.begin(), tokens.end(), 0u);
  EXPECT_EQ(hex(hashes_of(tokens, 4, *root_hash({}))),
            "85cbf446a4563b00db6128ef21e7b46587f3e4ed4b77afb8af412a4d9e3bfc65");
  EXPECT_EQ(hex(hashes_of({0, 1, UINT32_MAX, 7}, 2, *root_hash(as_bytes("tenant")))),
            "199f219a8e83c47f3d0cc4ebf6d4f2bcc4292eafcefeec7a86414e1c76793d1f");
}

TEST(ChunkHash, AChainGoesOnBehindItsParent) {
  std::vector<std::uint32_t> tokens(12);
  std::iota(tokens.begin(), tokens.end(), 5u);
  const auto all = hashes_of(tokens, 3, *root_hash({}));
  const std::vector<std::uint32_t> rest(tokens.begin() + 6, tokens.end());
  const auto tail = hashes_of(rest, 3, ChunkHash::load(all.data() + kHashBytes));
  EXPECT_EQ(hex(tail), hex(ByteView(all).subspan(2 * kHashBytes)));
}

TEST(ChunkHash, TokensBehindTheLastFullChunkHaveNone) {
  EXPECT_TRUE(hashes_of({1, 2, 3}, 4, *root_hash({})).empty());
  EXPECT_EQ(hex(hashes_of({1, 2, 3, 4, 5}, 2, {})), hex(hashes_of({1, 2, 3, 4}, 2, {})));
}

}  // namespace
}  // namespace kvferry::cache
