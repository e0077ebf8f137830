#include "codec/fp8.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "codec/test_numbers.hpp"

namespace kvferry::codec {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

std::size_t bytes_of(Fp8Of of) { return of == Fp8Of::kFp32 ? 4 : 2; }

float from_fp16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const float mantissa = static_cast<float>(bits & 1023) / 1024;
  const float abs = exponent == 31  ? std::numeric_limits<float>::infinity()
                    : exponent == 0 ? std::ldexp(mantissa, -14)
                                    : std::ldexp(1 + mantissa, exponent - 15);
  return (bits & 0x8000) != 0 ? -abs : abs;
}

Floats read(Fp8Of of, const Bytes& content) {
  Floats out(content.size() / bytes_of(of));
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, content.data() + i * bytes_of(of), bytes_of(of));
    out[i] = of == Fp8Of::kFp32   ? std::bit_cast<float>(bits)
             : of == Fp8Of::kBf16 ? std::bit_cast<float>(bits << 16)
                                  : from_fp16(static_cast<std::uint16_t>(bits));
  }
  return out;
}

// All finite numbers of 16 bits; of 32, the same ones as bf16 with noise behind.
Bytes all_finite(Fp8Of of) {
  const std::uint32_t infinity = of == Fp8Of::kFp16 ? 0x7c00 : 0x7f80;
  std::mt19937 random(1);
  Bytes out;
  for (std::uint32_t number = 0; number < 1 << 16; ++number) {
    if ((number & 0x7fff) >= infinity) continue;
    const std::uint32_t bits = of == Fp8Of::kFp32 ? number << 16 | (random() & 0xffff) : number;
    const std::size_t at = out.size();
    out.resize(at + bytes_of(of));
    std::memcpy(out.data() + at, &bits, bytes_of(of));
  }
  return out;
}

Bytes encoded(Fp8Of of, const Bytes& content) {
  Bytes block(content.size());
  block.resize(fp8_encode(of, content, block));
  return block;
}

Bytes decoded(Fp8Of of, const Bytes& block, std::size_t size) {
  Bytes content(size);
  EXPECT_TRUE(fp8_decode(of, block, content));
  return content;
}

// 1/16 of the number, or 2^-10 of the scale, by which the largest of the 32 is at most 448.
void expect_near(Fp8Of of, const Bytes& before, const Bytes& after) {
  const Floats a = read(of, before), b = read(of, after);
  for (std::size_t start = 0; start < a.size(); start += kFp8GroupNumbers) {
    const std::size_t end = std::min(a.size(), start + kFp8GroupNumbers);
    float most = 0;
    for (std::size_t i = start; i < end; ++i) most = std::max(most, std::abs(a[i]));
    // The smallest power of two by which `most` fits is less than most / 224.
    const double small = std::max(double{most} / 224 / 1024, std::ldexp(1.0, -136));
    for (std::size_t i = start; i < end; ++i) {
      const double wrong = std::abs(double{a[i]} - double{b[i]});
      ASSERT_LE(wrong, std::max(std::abs(double{a[i]}) / 16, small)) << a[i] << " " << b[i];
      ASSERT_EQ(std::signbit(a[i]), std::signbit(b[i])) << a[i];
    }
  }
}

class Fp8 : public testing::TestWithParam<Fp8Of> {};

TEST_P(Fp8, EveryNumberComesBackWithinTheBound) {
  Bytes content = all_finite(GetParam());
  std::mt19937 random(2);
  for (int round = 0; round < 3; ++round) {
    expect_near(GetParam(), content,
                decoded(GetParam(), encoded(GetParam(), content), content.size()));
    // In other company, and so with other scales.
    for (std::size_t i = content.size() / bytes_of(GetParam()) - 1; i > 0; --i) {
      std::byte* const one = content.data() + i * bytes_of(GetParam());
      std::swap_ranges(one, one + bytes_of(GetParam()),
                       content.data() + random() % i * bytes_of(GetParam()));
    }
  }
}

TEST_P(Fp8, WhatCameBackComesBackAsItIs) {
  Bytes content = all_finite(GetParam());
  const Bytes once = decoded(GetParam(), encoded(GetParam(), content), content.size());
  EXPECT_TRUE(decoded(GetParam(), encoded(GetParam(), once), once.size()) == once);
}

TEST_P(Fp8, LengthsThatAreNoWholeGroups) {
  for (const std::size_t size : {9u, 63u, 64u, 66u, 127u, 130u, 1001u}) {
    Bytes content = all_finite(GetParam());
    content.resize(size);
    const Bytes block = encoded(GetParam(), content);
    ASSERT_FALSE(block.empty()) << size;
    const Bytes back = decoded(GetParam(), block, size);
    expect_near(GetParam(), content, back);
    const std::size_t rest = size % bytes_of(GetParam());
    EXPECT_TRUE(std::equal(back.end() - static_cast<std::ptrdiff_t>(rest), back.end(),
                           content.end() - static_cast<std::ptrdiff_t>(rest)));
    Bytes cut(size);
    EXPECT_FALSE(fp8_decode(GetParam(), ByteView(block).first(block.size() - 1), cut));
    EXPECT_FALSE(fp8_decode(GetParam(), block, MutableBytes(cut).first(size / 2)));
  }
}

TEST_P(Fp8, WhatHasNoScaleIsLeftAlone) {
  const std::uint32_t infinity = GetParam() == Fp8Of::kFp16   ? 0x7c00
                                 : GetParam() == Fp8Of::kBf16 ? 0x7f80
                                                              : 0x7f80'0000;
  for (const std::uint32_t more : {0u, 1u}) {
    Bytes content(1000);
    const std::uint32_t bits = infinity + more;
    std::memcpy(content.data() + 100 * bytes_of(GetParam()), &bits, bytes_of(GetParam()));
    EXPECT_TRUE(encoded(GetParam(), content).empty());
  }
}

TEST_P(Fp8, AnyBlockOfTheLengthDecodesToSomething) {
  Bytes content(4096 + 1);
  const std::size_t size = encoded(GetParam(), Bytes(content.size())).size();
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_TRUE(fp8_decode(GetParam(), random_bytes(size, seed), content));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Fp8, testing::Values(Fp8Of::kBf16, Fp8Of::kFp16, Fp8Of::kFp32),
                         [](const auto& of) {
                           return of.param == Fp8Of::kBf16   ? "Bf16"
                                  : of.param == Fp8Of::kFp16 ? "Fp16"
                                                             : "Fp32";
                         });

}  // namespace
}  // namespace kvferry::codec
