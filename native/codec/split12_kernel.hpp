#pragma once
// The loops of split12, plain and for processors with AVX2. Both make the same bytes.
//
// Numbers are turned left by one bit, so that the exponent is the upper byte and the lower one has
// mantissa and sign. Byte i of the codes belongs to number i (lower half of the byte) and to number
// i + count / 2.
//
// Threads: any.
// The source of AVX2 is compiled with -mavx2, so it includes nothing whose inline functions the
// linker could choose for others: hence plain pointers.

#include <cstddef>
#include <cstdint>

namespace kvferry::codec {

inline constexpr std::size_t kSplit12Exponents = 14;  // of a window; code 0 is exponent 0
inline constexpr std::uint8_t kSplit12Rare = 15;

// Exponents that have no code, of one half, in order.
struct Split12Rare {
  std::uint8_t* next = nullptr;
  const std::uint8_t* end = nullptr;  // decoding: how far they go; encoding: room for all of a half
};

struct Split12Kernel {
  // `count` numbers, in whole groups of 64. Exponents first .. first + 13 have codes 1 .. 14.
  void (*encode)(const std::uint8_t* content, std::size_t count, std::uint8_t first,
                 std::uint8_t* low, std::uint8_t* codes, Split12Rare* rare);
  // False: the rare exponents are more or fewer than the codes say.
  bool (*decode)(const std::uint8_t* low, const std::uint8_t* codes, std::size_t count,
                 const std::uint8_t* table, Split12Rare* rare, std::uint8_t* content);
};

const Split12Kernel& split12_plain() noexcept;
// Null where the compiler did not make it. Requires: the processor has AVX2.
const Split12Kernel* split12_avx2() noexcept;

}  // namespace kvferry::codec
