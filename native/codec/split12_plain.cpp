// The loops of split12 for any processor; what other kernels are compared with.

#include "codec/split12_kernel.hpp"

namespace kvferry::codec {
namespace {

std::uint8_t code_of(std::uint8_t exponent, std::uint8_t first) noexcept {
  if (exponent == 0) return 0;
  const auto place = static_cast<std::uint8_t>(exponent - first);
  return place < kSplit12Exponents ? static_cast<std::uint8_t>(place + 1) : kSplit12Rare;
}

void encode(const std::uint8_t* content, std::size_t count, std::uint8_t first, std::uint8_t* low,
            std::uint8_t* codes, Split12Rare* rare) {
  const std::size_t half = count / 2;
  for (std::size_t i = 0; i < half; ++i) {
    std::uint8_t both = 0;
    for (std::size_t side = 0; side < 2; ++side) {
      const std::size_t at = i + side * half;
      const std::uint8_t below = content[2 * at];
      const std::uint8_t above = content[2 * at + 1];
      low[at] = static_cast<std::uint8_t>(below << 1 | above >> 7);
      const auto exponent = static_cast<std::uint8_t>(above << 1 | below >> 7);
      const std::uint8_t code = code_of(exponent, first);
      if (code == kSplit12Rare) *rare[side].next++ = exponent;
      both = static_cast<std::uint8_t>(both | code << (4 * side));
    }
    codes[i] = both;
  }
}

bool decode(const std::uint8_t* low, const std::uint8_t* codes, std::size_t count,
            const std::uint8_t* table, Split12Rare* rare, std::uint8_t* content) {
  const std::size_t half = count / 2;
  for (std::size_t i = 0; i < half; ++i) {
    for (std::size_t side = 0; side < 2; ++side) {
      const std::size_t at = i + side * half;
      const auto code = static_cast<std::uint8_t>(codes[i] >> (4 * side) & 15);
      std::uint8_t exponent = table[code];
      if (code == kSplit12Rare) {
        if (rare[side].next == rare[side].end) return false;
        exponent = *rare[side].next++;
      }
      content[2 * at] = static_cast<std::uint8_t>(low[at] >> 1 | exponent << 7);
      content[2 * at + 1] = static_cast<std::uint8_t>(exponent >> 1 | low[at] << 7);
    }
  }
  return rare[0].next == rare[0].end && rare[1].next == rare[1].end;
}

constexpr Split12Kernel kKernel{.encode = &encode, .decode = &decode};

}  // namespace

const Split12Kernel& split12_plain() noexcept { return kKernel; }

}  // namespace kvferry::codec
