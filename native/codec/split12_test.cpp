#include "codec/split12.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "codec/split12_kernel.hpp"
#include "codec/test_numbers.hpp"

namespace kvferry::codec {
namespace {

// Empty: it would not be shorter.
std::vector<std::byte> encoded(ByteView content) {
  std::vector<std::byte> out(content.size());
  out.resize(split12_encode(content, out));
  return out;
}

// The block, written and read by one kernel.
struct Written {
  std::vector<std::uint8_t> low, codes, rare[2];
  bool operator==(const Written&) const = default;
};

Written written_by(const Split12Kernel& kernel, ByteView content, std::uint8_t first) {
  const std::size_t count = content.size() / 2;
  Written out{std::vector<std::uint8_t>(count), std::vector<std::uint8_t>(count / 2), {}};
  Split12Rare rare[2];
  for (std::size_t side = 0; side < 2; ++side) {
    out.rare[side].resize(count / 2);
    rare[side].next = out.rare[side].data();
  }
  kernel.encode(reinterpret_cast<const std::uint8_t*>(content.data()), count, first, out.low.data(),
                out.codes.data(), rare);
  for (std::size_t side = 0; side < 2; ++side) {
    out.rare[side].resize(static_cast<std::size_t>(rare[side].next - out.rare[side].data()));
  }
  return out;
}

std::vector<std::byte> read_by(const Split12Kernel& kernel, Written written, std::uint8_t first) {
  std::vector<std::uint8_t> content(2 * written.low.size());
  std::uint8_t table[16]{};
  for (std::size_t i = 0; i < kSplit12Exponents; ++i) {
    table[i + 1] = static_cast<std::uint8_t>(first + i);
  }
  Split12Rare rare[2];
  for (std::size_t side = 0; side < 2; ++side) {
    std::vector<std::uint8_t>& found = written.rare[side];
    rare[side] = {found.data(), found.data() + found.size()};
  }
  EXPECT_TRUE(kernel.decode(written.low.data(), written.codes.data(), written.low.size(), table,
                            rare, content.data()));
  std::vector<std::byte> bytes(content.size());
  std::memcpy(bytes.data(), content.data(), content.size());
  return bytes;
}

TEST(Split12, EveryPatternOfSixteenBitsComesBackByEveryKernel) {
  const std::vector<std::byte> all = every_number();
  std::vector<const Split12Kernel*> kernels = {&split12_plain()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0 && split12_avx2() != nullptr) {
    kernels.push_back(split12_avx2());
  }
#endif
  for (const std::uint8_t first : {std::uint8_t{1}, std::uint8_t{118}, std::uint8_t{242}}) {
    const Written plain = written_by(split12_plain(), all, first);
    for (const Split12Kernel* kernel : kernels) {
      EXPECT_TRUE(written_by(*kernel, all, first) == plain) << int{first};
      EXPECT_TRUE(read_by(*kernel, plain, first) == all) << int{first};
    }
  }
}

TEST(Split12, NumbersOfOneScaleTakeThreeQuarters) {
  const std::vector<std::byte> content = normal_numbers(kSplit12BlockBytesMax / 2, 1);
  const std::vector<std::byte> block = encoded(content);
  ASSERT_FALSE(block.empty());
  EXPECT_GT(static_cast<double>(content.size()) / static_cast<double>(block.size()), 1.30);
  EXPECT_TRUE(split12_pays(content));
  std::vector<std::byte> back(content.size());
  ASSERT_TRUE(split12_decode(block, back));
  EXPECT_TRUE(back == content);
}

TEST(Split12, OddNumbersAmongOthersComeBack) {
  for (const std::size_t count : {64u, 128u, 192u, 4096u, 32'768u}) {
    for (const std::uint16_t odd : std::initializer_list<std::uint16_t>{
             0x0000, 0x8000, 0x0001, 0x8001, 0x7f80, 0xff80, 0x7fc1, 0xffff}) {
      std::vector<std::byte> content = normal_numbers(count, count);
      for (std::size_t at = 5; at < count; at += 37) put_number(content, at, odd);
      const std::vector<std::byte> block = encoded(content);
      ASSERT_FALSE(block.empty()) << count << " " << odd;
      std::vector<std::byte> back(content.size());
      ASSERT_TRUE(split12_decode(block, back));
      EXPECT_TRUE(back == content) << count << " " << odd;
    }
  }
}

TEST(Split12, OneNumberAgainAndAgainComesBack) {
  for (const std::uint16_t number :
       std::initializer_list<std::uint16_t>{0x0000, 0x8000, 0x3f80, 0x7fc0, 0xffff}) {
    std::vector<std::byte> content(8192);
    for (std::size_t at = 0; at < content.size() / 2; ++at) put_number(content, at, number);
    const std::vector<std::byte> block = encoded(content);
    ASSERT_FALSE(block.empty()) << number;
    std::vector<std::byte> back(content.size());
    ASSERT_TRUE(split12_decode(block, back));
    EXPECT_TRUE(back == content) << number;
  }
}

TEST(Split12, NoiseIsLeftAlone) {
  const std::vector<std::byte> noise = random_bytes(65'536, 3);
  EXPECT_TRUE(encoded(noise).empty());
  EXPECT_FALSE(split12_pays(noise));
}

TEST(Split12, ACutOrLongerBlockIsRefused) {
  std::vector<std::byte> content = normal_numbers(256, 4);
  put_number(content, 3, 0x7fc0);
  put_number(content, 200, 0x7fc0);
  const std::vector<std::byte> block = encoded(content);
  std::vector<std::byte> back(content.size());
  for (std::size_t size = 0; size < block.size(); ++size) {
    EXPECT_FALSE(split12_decode(ByteView(block).first(size), back)) << size;
  }
  std::vector<std::byte> longer = block;
  longer.push_back({});
  EXPECT_FALSE(split12_decode(longer, back));
  std::vector<std::byte> other(content.size() + kSplit12UnitBytes);
  EXPECT_FALSE(split12_decode(block, other));
}

// Nothing but the checksum finds a wrong byte; rare ones too many or too few are found at once.
TEST(Split12, RareExponentsAreCounted) {
  std::vector<std::byte> content = normal_numbers(256, 5);
  put_number(content, 3, 0x7fc0);
  const std::vector<std::byte> block = encoded(content);
  std::vector<std::byte> back(content.size());
  for (const std::byte code : {std::byte{0x01}, std::byte{0x0f}}) {
    std::vector<std::byte> wrong = block;
    // Of the one that is rare, or of another one.
    std::byte& codes = wrong[kSplit12HeadBytes + 256 + (code == std::byte{0x0f} ? 4 : 3)];
    codes = (codes & std::byte{0xf0}) | code;
    EXPECT_FALSE(split12_decode(wrong, back)) << static_cast<int>(code);
  }
}

}  // namespace
}  // namespace kvferry::codec
