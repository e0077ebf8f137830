#include "codec/fp8.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace kvferry::codec {
namespace {

constexpr std::uint32_t kAbs = 0x7fff'ffff;
constexpr std::uint32_t kInfinity = 0x7f80'0000;
constexpr std::uint32_t kMantissa = 0x7f'ffff;
constexpr int kMantissaBits = 23;
constexpr int kDropped = 20;  // of a float's mantissa; three bits stay
// 448, the largest number of E4M3, is 1.75 times 2^8.
constexpr std::uint32_t kMostMantissa = 0x60'0000;
constexpr std::uint32_t kMostExponent = 8;
constexpr std::uint32_t kNormalMin = 8;  // the code of 2^-6; those below are multiples of 2^-9
constexpr float kFp16Bias = 0x1p112f;    // the exponents of float and fp16 begin so far apart

constexpr std::uint32_t kSmallBelow = std::bit_cast<std::uint32_t>(0x1p-6f);

// Without a branch, which would keep the loops from being done for many numbers at once.
std::uint32_t choose(bool first, std::uint32_t a, std::uint32_t b) noexcept {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(first);
  return (a & mask) | (b & ~mask);
}

struct Bf16 {
  using Bits = std::uint16_t;
  static std::uint32_t to_float(Bits bits) { return static_cast<std::uint32_t>(bits) << 16; }
  static Bits from_float(std::uint32_t bits) {
    return static_cast<Bits>((bits & ~kAbs) >> 16 | std::min(bits & kAbs, kInfinity - 1) >> 16);
  }
};

struct Fp16 {
  using Bits = std::uint16_t;
  static std::uint32_t to_float(Bits bits) {
    const std::uint32_t abs = static_cast<std::uint32_t>(bits & 0x7fff) << 13;
    // What has the exponent of infinity has that of float's as well.
    const std::uint32_t number =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(abs) * kFp16Bias);
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
    return sign | choose(abs >= std::uint32_t{0x7c00} << 13, kInfinity, number);
  }
  static Bits from_float(std::uint32_t bits) {
    const float abs = std::bit_cast<float>(bits & kAbs) / kFp16Bias;
    const std::uint32_t number = std::bit_cast<std::uint32_t>(abs) >> 13;
    return static_cast<Bits>((bits & ~kAbs) >> 16 | std::min(number, std::uint32_t{0x7bff}));
  }
};

struct Fp32 {
  using Bits = std::uint32_t;
  static std::uint32_t to_float(Bits bits) { return bits; }
  static Bits from_float(std::uint32_t bits) {
    return (bits & ~kAbs) | std::min(bits & kAbs, kInfinity - 1);
  }
};

// The exponent of the scale, with a float's bias. Never that of denormals, which take their time.
std::uint32_t scale_for(std::uint32_t most) noexcept {
  const std::uint32_t exponent = most >> kMantissaBits;
  const std::uint32_t more = (most & kMantissa) > kMostMantissa ? 1 : 0;
  return std::max(exponent + more, kMostExponent + 1) - kMostExponent;
}

std::uint8_t code_of(std::uint32_t bits, float inverse) noexcept {
  const float abs = std::bit_cast<float>(bits & kAbs) * inverse;
  const auto scaled = std::bit_cast<std::uint32_t>(abs);
  // To the nearest, and to even codes from the middle; beside 2^14 floats are 2^-9 apart.
  const std::uint32_t rounded = scaled + 0x7'ffff + (scaled >> kDropped & 1);
  const std::uint32_t normal = (rounded >> kDropped) - (127 - 7) * kNormalMin;
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(abs + 0x1p14f) - std::bit_cast<std::uint32_t>(0x1p14f);
  const std::uint32_t code = choose(scaled < kSmallBelow, small, normal);
  return static_cast<std::uint8_t>(code | (bits & ~kAbs) >> 24);
}

std::uint32_t number_of(std::uint8_t code, float scale) noexcept {
  const std::uint32_t abs = code & 0x7f;
  const std::uint32_t normal = (abs << kDropped) + ((127U - 7) << kMantissaBits);
  const float small = static_cast<float>(static_cast<int>(abs)) * 0x1p-9f;
  const float unscaled =
      std::bit_cast<float>(choose(abs < kNormalMin, std::bit_cast<std::uint32_t>(small), normal));
  const auto number = std::bit_cast<std::uint32_t>(unscaled * scale);
  return number | static_cast<std::uint32_t>(code & 0x80) << 24;
}

template <typename Number>
using Numbers = std::array<typename Number::Bits, kFp8GroupNumbers>;
using Codes = std::array<std::uint8_t, kFp8GroupNumbers>;

// Returns the scale; 0: a number is not finite.
template <typename Number>
std::uint32_t encode_group(const Numbers<Number>& numbers, Codes& codes) noexcept {
  std::array<std::uint32_t, kFp8GroupNumbers> floats;
  for (std::size_t i = 0; i < kFp8GroupNumbers; ++i) floats[i] = Number::to_float(numbers[i]);
  std::uint32_t most = 0;
  for (const std::uint32_t bits : floats) most = std::max(most, bits & kAbs);
  if (most >= kInfinity) return 0;
  const std::uint32_t scale = scale_for(most);
  const auto inverse = std::bit_cast<float>((254 - scale) << kMantissaBits);
  for (std::size_t i = 0; i < kFp8GroupNumbers; ++i) codes[i] = code_of(floats[i], inverse);
  return scale;
}

template <typename Number>
void decode_group(const Codes& codes, std::uint32_t scale, Numbers<Number>& numbers) noexcept {
  const auto factor = std::bit_cast<float>(scale << kMantissaBits);
  for (std::size_t i = 0; i < kFp8GroupNumbers; ++i) {
    numbers[i] = Number::from_float(number_of(codes[i], factor));
  }
}

// What a block has: scales, codes, and the bytes behind the last whole number as they are.
template <typename Number>
struct Shape {
  static constexpr std::size_t kBytes = sizeof(typename Number::Bits);
  explicit Shape(std::size_t content_bytes)
      : count(content_bytes / kBytes),
        rest(content_bytes % kBytes),
        groups((count + kFp8GroupNumbers - 1) / kFp8GroupNumbers) {}
  std::size_t size() const { return groups + count + rest; }

  std::size_t count, rest, groups;
};

template <typename Number>
std::size_t encode(ByteView content, MutableBytes out) noexcept {
  const Shape<Number> shape(content.size());
  if (shape.size() >= content.size()) return 0;
  std::byte* codes_to = out.data() + shape.groups;
  const std::byte* from = content.data();
  std::size_t left = shape.count;
  for (std::size_t group = 0; group < shape.groups; ++group) {
    Numbers<Number> numbers{};
    Codes codes;
    const std::size_t here = std::min(kFp8GroupNumbers, left);
    if (here == kFp8GroupNumbers) {  // a copy whose length is known takes no call
      std::memcpy(numbers.data(), from, sizeof numbers);
    } else {
      std::memcpy(numbers.data(), from, here * shape.kBytes);
    }
    const std::uint32_t scale = encode_group<Number>(numbers, codes);
    if (scale == 0) return 0;
    out[group] = static_cast<std::byte>(scale);
    std::memcpy(codes_to, codes.data(), here == kFp8GroupNumbers ? kFp8GroupNumbers : here);
    codes_to += here;
    from += here * shape.kBytes;
    left -= here;
  }
  std::memcpy(codes_to, from, shape.rest);
  return shape.size();
}

template <typename Number>
bool decode(ByteView block, MutableBytes content) noexcept {
  const Shape<Number> shape(content.size());
  if (block.size() != shape.size()) return false;
  const std::byte* from = block.data() + shape.groups;
  std::byte* to = content.data();
  std::size_t left = shape.count;
  for (std::size_t group = 0; group < shape.groups; ++group) {
    Codes codes{};
    Numbers<Number> numbers;
    const std::size_t here = std::min(kFp8GroupNumbers, left);
    const auto scale = std::to_integer<std::uint32_t>(block[group]);
    if (here == kFp8GroupNumbers) {
      std::memcpy(codes.data(), from, sizeof codes);
      decode_group<Number>(codes, scale, numbers);
      std::memcpy(to, numbers.data(), sizeof numbers);
    } else {
      std::memcpy(codes.data(), from, here);
      decode_group<Number>(codes, scale, numbers);
      std::memcpy(to, numbers.data(), here * shape.kBytes);
    }
    from += here;
    to += here * shape.kBytes;
    left -= here;
  }
  std::memcpy(to, from, shape.rest);
  return true;
}

}  // namespace

std::size_t fp8_encode(Fp8Of of, ByteView content, MutableBytes out) noexcept {
  switch (of) {
    case Fp8Of::kBf16:
      return encode<Bf16>(content, out);
    case Fp8Of::kFp16:
      return encode<Fp16>(content, out);
    case Fp8Of::kFp32:
      return encode<Fp32>(content, out);
  }
  return 0;
}

bool fp8_decode(Fp8Of of, ByteView block, MutableBytes content) noexcept {
  switch (of) {
    case Fp8Of::kBf16:
      return decode<Bf16>(block, content);
    case Fp8Of::kFp16:
      return decode<Fp16>(block, content);
    case Fp8Of::kFp32:
      return decode<Fp32>(block, content);
  }
  return false;
}

}  // namespace kvferry::codec
