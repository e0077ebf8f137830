#pragma once
// Fp8: one block of numbers as bytes, with loss: E4M3 with a scale for each 32 numbers that lie
// side by side, as MXFP8 of the OCP Microscaling Formats has it. The scale is a power of two, the
// smallest by which all 32 fit.
//
// What comes back differs by 1/16 of a number at most, or by 2^-10 of the scale where that is more.
// Encoded again it comes back as it is, so values may go from store to store.
//
// Threads: any. Failure: what was damaged is refused, or decodes to other numbers; nothing outside
// of its arguments is touched.
// Specified in: docs/formats/codecs.md.

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"

namespace kvferry::codec {

enum class Fp8Of : std::uint8_t { kBf16, kFp16, kFp32 };

inline constexpr std::size_t kFp8GroupNumbers = 32;

// Writes the block and returns its length; 0: an infinity or a NaN is among the numbers, which have
// no scale. Requires: as much room as the content takes.
[[nodiscard]] std::size_t fp8_encode(Fp8Of of, ByteView content, MutableBytes out) noexcept;

// Fills `content`, whose length is known. False: this is no block of that length.
[[nodiscard]] bool fp8_decode(Fp8Of of, ByteView block, MutableBytes content) noexcept;

}  // namespace kvferry::codec
