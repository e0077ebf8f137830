#pragma once
// Split12: one block of bf16 numbers in three quarters of its bytes, without loss.
//
// Sign and mantissa of a number have no order worth using; the exponents of neighbours are close to
// each other. So a block keeps the former as they are, one byte each, and writes each exponent as
// four bits: a place in a table of 15, or the word "rare", for one that stands behind the codes.
// Any bytes may be encoded: numbers of another kind only make it useless, never wrong.
//
// Threads: any. Failure: what was damaged is refused, or decodes to other bytes; nothing outside of
// its arguments is touched.
// Specified in: docs/formats/codecs.md, with bytes.

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"

namespace kvferry::codec {

// Content of such a block: two halves of whole groups, so that kernels have no remainders.
inline constexpr std::size_t kSplit12UnitBytes = 128;
inline constexpr std::size_t kSplit12BlockBytesMax = 64 * kKiB;
inline constexpr std::size_t kSplit12HeadBytes = 20;

// Writes the block and returns its length; 0: it would be longer than 15/16 of the content.
// Requires: content of 1 to kSplit12BlockBytesMax bytes in whole units; as much room in `out`.
[[nodiscard]] std::size_t split12_encode(ByteView content, MutableBytes out) noexcept;

// Fills `content`, whose length is known. False: this is no block of that length.
[[nodiscard]] bool split12_decode(ByteView block, MutableBytes content) noexcept;

// The same for content of any length: what is behind the last whole unit follows as it is.
[[nodiscard]] std::size_t split12_encode_any(ByteView content, MutableBytes out) noexcept;
[[nodiscard]] bool split12_decode_any(ByteView block, MutableBytes content) noexcept;

// Whether content is of the kind that gets shorter, by a look at a few places.
[[nodiscard]] bool split12_pays(ByteView content) noexcept;

}  // namespace kvferry::codec
