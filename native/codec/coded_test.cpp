#include "codec/coded.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "codec/checksum.hpp"
#include "codec/test_numbers.hpp"

namespace kvferry::codec {
namespace {

// By each codec.
class Coded : public testing::TestWithParam<Codec> {
 protected:
  static std::vector<std::byte> encoded(ByteView content) {
    std::vector<std::byte> out(coded_size_max(content.size()));
    out.resize(encode_stripe(GetParam(), content, out));
    return out;
  }
};

// Whether the payload is sound, and what it is then; `step` bytes arrive at a time.
bool decode(ByteView payload, MutableBytes content, std::size_t step) {
  StripeDecoder decoder;
  decoder.start(content, payload.size());
  while (!payload.empty()) {
    const MutableBytes space = decoder.space();
    const std::size_t part = std::min({step, space.size(), payload.size()});
    if (part == 0) return false;
    std::ranges::copy(payload.first(part), space.begin());
    payload = payload.subspan(part);
    if (!decoder.received(part)) return false;
  }
  return decoder.filled() == content.size();
}

TEST_P(Coded, ValuesOfAnyLengthComeBackInPiecesOfAnyLength) {
  for (const std::size_t size : {1000u, 4096u, 65'536u, 65'664u, 131'071u, 300'001u}) {
    std::vector<std::byte> content = normal_numbers(size / 2, size);
    content.resize(size);
    const std::vector<std::byte> payload = encoded(content);
    ASSERT_FALSE(payload.empty()) << size;
    EXPECT_LT(payload.size(), size);
    for (const std::size_t step : {std::size_t{1}, std::size_t{7}, std::size_t{4096}, SIZE_MAX}) {
      std::vector<std::byte> back(size);
      ASSERT_TRUE(decode(payload, back, step)) << size << " " << step;
      EXPECT_TRUE(back == content) << size << " " << step;
    }
  }
}

TEST_P(Coded, BlocksThatDoNotPayStandAsTheyAre) {
  std::vector<std::byte> content = normal_numbers(5 * kCodedBlockBytes / 2, 1);
  const std::vector<std::byte> noise = random_bytes(kCodedBlockBytes, 2);
  std::ranges::copy(noise, content.begin() + 2 * kCodedBlockBytes);
  const std::vector<std::byte> payload = encoded(content);
  ASSERT_FALSE(payload.empty());
  std::vector<std::byte> back(content.size());
  ASSERT_TRUE(decode(payload, back, 10'000));
  EXPECT_TRUE(back == content);
}

TEST_P(Coded, WhatDoesNotPayIsNotEncoded) {
  for (const std::size_t size : {0u, 1u, 2u, 127u, 65'536u, 1'000'000u}) {
    EXPECT_TRUE(encoded(random_bytes(size, size)).empty()) << size;
  }
}

TEST_P(Coded, ACutOrLongerPayloadIsRefused) {
  const std::vector<std::byte> content = normal_numbers(70'000, 3);
  const std::vector<std::byte> payload = encoded(content);
  std::vector<std::byte> back(content.size());
  for (std::size_t size = 0; size < payload.size(); size += 997) {
    EXPECT_FALSE(decode(ByteView(payload).first(size), back, SIZE_MAX)) << size;
  }
  std::vector<std::byte> longer = payload;
  longer.resize(payload.size() + 4);
  EXPECT_FALSE(decode(longer, back, SIZE_MAX));
}

// A checksum finds other content; memory beside the value is safe with any.
TEST_P(Coded, DamageStaysInsideTheValue) {
  const std::vector<std::byte> content = normal_numbers(kCodedBlockBytes / 2 + 4096, 4);
  const std::vector<std::byte> payload = encoded(content);
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::byte> bad = payload;
    const std::size_t where = round % 2 == 0 ? random() % 64 : random() % bad.size();
    bad[where] ^= static_cast<std::byte>(1 + random() % 255);
    std::vector<std::byte> back(content.size() + 128, std::byte{0xA5});
    (void)decode(bad, MutableBytes(back).subspan(64, content.size()), 5000);
    const auto is_fill = [](std::byte byte) { return byte == std::byte{0xA5}; };
    EXPECT_TRUE(std::all_of(back.begin(), back.begin() + 64, is_fill));
    EXPECT_TRUE(std::all_of(back.end() - 64, back.end(), is_fill));
  }
}

TEST_P(Coded, ADecoderIsUsedAgainAfterDamage) {
  const std::vector<std::byte> content = normal_numbers(40'000, 6);
  const std::vector<std::byte> payload = encoded(content);
  std::vector<std::byte> back(content.size());
  StripeDecoder decoder;
  decoder.start(back, 1000);
  std::ranges::fill(decoder.space(), std::byte{0xff});
  EXPECT_FALSE(decoder.received(1000));
  decoder.start(back, payload.size());
  std::ranges::copy(payload, decoder.space().begin());
  EXPECT_TRUE(decoder.received(payload.size()));
  EXPECT_TRUE(back == content);
}

// Numbers of other types have no exponents that split12 could name.
TEST(Zstd, ShortensWhatIsNoBf16) {
  std::vector<std::byte> content = random_bytes(3 * kCodedBlockBytes + 1, 7);
  for (std::byte& byte : content) byte &= std::byte{0xf0};
  std::vector<std::byte> payload(coded_size_max(content.size())), back(content.size());
  EXPECT_EQ(encode_stripe(Codec::kSplit12, content, payload), 0u);
  payload.resize(encode_stripe(Codec::kZstd, content, payload));
  ASSERT_FALSE(payload.empty());
  ASSERT_TRUE(decode(payload, back, 1000));
  EXPECT_TRUE(back == content);
}

// The frame's checksum is that of what a reader gets, which is what a second writer would store.
TEST(CodedFp8, TheChecksumIsOfWhatIsLeft) {
  std::vector<std::byte> content = normal_numbers(5 * kCodedBlockBytes / 4, 8);
  put_number(content, 40'000, 0x7f80);  // a block with an infinity stands as it is
  std::vector<std::byte> payload(coded_size_max(content.size())), back(content.size());
  payload.resize(encode_stripe(Codec::kFp8Bf16, content, payload));
  ASSERT_FALSE(payload.empty());
  ASSERT_TRUE(decode(payload, back, 5000));
  EXPECT_FALSE(back == content);
  EXPECT_TRUE(std::equal(back.begin() + kCodedBlockBytes, back.begin() + 2 * kCodedBlockBytes,
                         content.begin() + kCodedBlockBytes));
  EXPECT_EQ(content_checksum(Codec::kFp8Bf16, content), xxh3_64(back));
  EXPECT_EQ(content_checksum(Codec::kFp8Bf16, back), xxh3_64(back));
  EXPECT_EQ(content_checksum(Codec::kSplit12, content), xxh3_64(content));
}

TEST(CodedFp8, ContentThatDoesNotPayKeepsItsChecksum) {
  const std::vector<std::byte> content(300'000, std::byte{0xff});  // NaN
  std::vector<std::byte> payload(coded_size_max(content.size()));
  EXPECT_EQ(encode_stripe(Codec::kFp8Bf16, content, payload), 0u);
  EXPECT_EQ(content_checksum(Codec::kFp8Bf16, content), xxh3_64(content));
}

INSTANTIATE_TEST_SUITE_P(Codecs, Coded, testing::Values(Codec::kSplit12, Codec::kZstd),
                         [](const auto& codec) {
                           return codec.param == Codec::kZstd ? "Zstd" : "Split12";
                         });

}  // namespace
}  // namespace kvferry::codec
