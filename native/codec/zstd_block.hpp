#pragma once
// Zstd blocks: one block of content in fewer bytes by the library of that name, for links that are
// slower than it.
//
// Numbers of 16 bits are taken apart first, as split12 does: what zstd sees are the exponents, and
// signs and mantissas, which nothing shortens, stand in front of them. Other content goes through
// as it is.
//
// Threads: any; each that calls keeps a context of the library, some hundred KiB, until it ends.
// Failure: what was damaged is refused, or decodes to other bytes; nothing outside of the arguments
// is touched, and what a block says of itself makes nobody take memory.
// Specified in: docs/formats/codecs.md.

#include <cstddef>

#include "base/bytes.hpp"

namespace kvferry::codec {

inline constexpr std::size_t kZstdBlockBytesMax = 64 * kKiB;  // of content

// Writes the block and returns its length; 0: it would be no shorter than the content, or there is
// no memory for a context. `out` has as much room as the content takes.
[[nodiscard]] std::size_t zstd_encode(ByteView content, MutableBytes out) noexcept;

// Fills `content`, whose length is known. False: this is no block of that length.
[[nodiscard]] bool zstd_decode(ByteView block, MutableBytes content) noexcept;

// The same for content of 16-bit numbers. Requires: an even length, kZstdBlockBytesMax at most.
[[nodiscard]] std::size_t zstd_encode_numbers(ByteView content, MutableBytes out) noexcept;
[[nodiscard]] bool zstd_decode_numbers(ByteView block, MutableBytes content) noexcept;

}  // namespace kvferry::codec
