#include "codec/zstd_block.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include <zstd.h>

#include "codec/test_numbers.hpp"

namespace kvferry::codec {
namespace {

using Bytes = std::vector<std::byte>;

Bytes frame_of(const Bytes& content) {
  Bytes out(ZSTD_compressBound(content.size()));
  out.resize(ZSTD_compress(out.data(), out.size(), content.data(), content.size(), 3));
  return out;
}

TEST(ZstdBlock, NumbersTakeLessThanTwoThirdsAndComeBack) {
  const Bytes content = normal_numbers(kZstdBlockBytesMax / 2, 1);
  Bytes block(content.size()), back(content.size());
  block.resize(zstd_encode_numbers(content, block));
  EXPECT_LT(block.size(), content.size() * 69 / 100);
  ASSERT_TRUE(zstd_decode_numbers(block, back));
  EXPECT_TRUE(back == content);
}

TEST(ZstdBlock, EveryNumberComesBack) {
  const Bytes all = every_number();
  for (std::size_t at = 0; at < all.size(); at += kZstdBlockBytesMax / 2) {
    Bytes content(all.begin() + static_cast<std::ptrdiff_t>(at),
                  all.begin() + static_cast<std::ptrdiff_t>(at + kZstdBlockBytesMax / 2));
    Bytes block(content.size()), back(content.size());
    block.resize(zstd_encode_numbers(content, block));
    ASSERT_FALSE(block.empty());
    ASSERT_TRUE(zstd_decode_numbers(block, back));
    EXPECT_TRUE(back == content);
  }
}

TEST(ZstdBlock, NoiseAndNothingAreLeftAlone) {
  for (const std::size_t size : {0u, 1u, 2u, 100u, 65'536u}) {
    const Bytes content = random_bytes(size, size);
    Bytes block(size);
    EXPECT_EQ(zstd_encode(content, block), 0u) << size;
    EXPECT_EQ(zstd_encode_numbers(content, block), 0u) << size;
  }
}

// What a frame says of itself asks for no memory: 64 MiB of zeros are 2 KiB of it.
TEST(ZstdBlock, ABombIsRefused) {
  const Bytes bomb = frame_of(Bytes(64 * kMiB));
  ASSERT_LT(bomb.size(), 8 * kKiB);
  Bytes back(4096 + 64, std::byte{0xA5});
  EXPECT_FALSE(zstd_decode(bomb, MutableBytes(back).first(4096)));
  EXPECT_TRUE(std::all_of(back.begin() + 4096, back.end(),
                          [](std::byte byte) { return byte == std::byte{0xA5}; }));
  Bytes numbers(2048);
  numbers.insert(numbers.end(), bomb.begin(), bomb.end());
  EXPECT_FALSE(zstd_decode_numbers(numbers, MutableBytes(back).first(4096)));
}

TEST(ZstdBlock, AWindowOfGigabytesIsNotTaken) {
  Bytes block = frame_of(Bytes(4096));
  // No length of the content, and the largest window: RFC 8878, 3.1.1.1.
  const Bytes head = {std::byte{0x28}, std::byte{0xb5}, std::byte{0x2f},
                      std::byte{0xfd}, std::byte{0x00}, std::byte{0xff}};
  Bytes back(4096);
  for (const std::size_t skipped : {5u, 6u, 7u}) {
    Bytes other = head;
    other.insert(other.end(), block.begin() + static_cast<std::ptrdiff_t>(skipped), block.end());
    if (zstd_decode(other, back)) {
      EXPECT_TRUE(back == Bytes(4096));
    }
  }
}

TEST(ZstdBlock, OneFrameOfTheLengthIsABlockAndNothingElse) {
  const Bytes content = normal_numbers(2048, 2), block = frame_of(content);
  Bytes back(content.size());
  ASSERT_TRUE(zstd_decode(block, back));
  EXPECT_TRUE(back == content);
  Bytes smaller(content.size() - 1), larger(content.size() + 1);
  EXPECT_FALSE(zstd_decode(block, smaller));
  EXPECT_FALSE(zstd_decode(block, larger));
  for (std::size_t size = 0; size < block.size(); size += 7) {
    EXPECT_FALSE(zstd_decode(ByteView(block).first(size), back)) << size;
  }
  Bytes two = frame_of(Bytes(content.begin(), content.begin() + 100));
  const Bytes second = frame_of(Bytes(content.begin() + 100, content.end()));
  two.insert(two.end(), second.begin(), second.end());
  EXPECT_FALSE(zstd_decode(two, back));
  Bytes old = block;
  old[0] = std::byte{0x27};  // version 0.7 of the format
  EXPECT_FALSE(zstd_decode(old, back));
}

TEST(ZstdBlock, NumbersOfAnOddOrLongerBlockAreRefused) {
  Bytes block(200'000), back(kZstdBlockBytesMax + 2);
  EXPECT_FALSE(zstd_decode_numbers(block, back));
  EXPECT_FALSE(zstd_decode_numbers(block, MutableBytes(back).first(4095)));
}

}  // namespace
}  // namespace kvferry::codec
