#pragma once
// Codecs: every form that a payload may have, in one place: its numbers, its name, its functions.
// A new codec is a header, a source, and its lines here. Frames, settings and commands, those in
// Python too, read these tables.
//
// Numbers are stored with values: they never change, and none is used for something else.
// Threads: any.
// Specified in: docs/formats/codecs.md.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bytes.hpp"
#include "codec/fp8.hpp"
#include "codec/split12.hpp"
#include "codec/zstd_block.hpp"

namespace kvferry::codec {

// In the header of a frame.
enum class Codec : std::uint8_t {
  kRaw = 0,      // the payload is the content
  kSplit12 = 1,  // blocks of codec/coded.hpp, as the next ones
  kZstd = 2,
  kFp8Bf16 = 3,  // these lose something; the identity of their values says so
  kFp8Fp16 = 4,
  kFp8Fp32 = 5,
};

// In the head of a block: how that one was written.
enum class Method : std::uint8_t {
  kPlain = 0,
  kSplit12 = 1,
  kZstd = 2,
  kZstdNumbers = 3,
  kFp8Bf16 = 4,
  kFp8Fp16 = 5,
  kFp8Fp32 = 6,
};

struct BlockFunctions {
  // Returns the length; 0: it is not shorter by enough, and the block is written plain.
  std::size_t (*encode)(ByteView content, MutableBytes body) noexcept;
  // False: this is no block of that length.
  bool (*decode)(ByteView body, MutableBytes content) noexcept;
  // A value may end in half a number: such a block is written by another method.
  std::size_t number_bytes = 1;
  Method otherwise = Method::kPlain;
};

template <Fp8Of kOf>
inline constexpr BlockFunctions kFp8Functions{
    [](ByteView content, MutableBytes body) noexcept { return fp8_encode(kOf, content, body); },
    [](ByteView body, MutableBytes content) noexcept { return fp8_decode(kOf, body, content); },
};

// By their numbers, from 1 on.
inline constexpr std::array kMethods = {
    BlockFunctions{&split12_encode_any, &split12_decode_any},
    BlockFunctions{&zstd_encode, &zstd_decode},
    BlockFunctions{&zstd_encode_numbers, &zstd_decode_numbers, 2, Method::kZstd},
    kFp8Functions<Fp8Of::kBf16>,
    kFp8Functions<Fp8Of::kFp16>,
    kFp8Functions<Fp8Of::kFp32>,
};

struct NamedCodec {
  std::string_view name;   // in settings
  std::string_view dtype;  // of the numbers that it takes with loss; empty: any bytes, without
  // Where settings leave the codec to the link, chunks are written by the one with the lowest share
  // of those whose share of what a thread encodes is above what the link brings; 0: by others.
  double auto_below = 0;
  // How the blocks of a stripe are to be written.
  Method (*method)(ByteView content) noexcept;
};

// By their numbers.
inline constexpr std::array kCodecs = {
    NamedCodec{"naive", "", 0, [](ByteView) noexcept { return Method::kPlain; }},
    NamedCodec{"split12", "", 0.5,
               [](ByteView content) noexcept {
                 return split12_pays(content) ? Method::kSplit12 : Method::kPlain;
               }},
    NamedCodec{"zstd", "", 0.25,
               [](ByteView content) noexcept {
                 return split12_pays(content) ? Method::kZstdNumbers : Method::kZstd;
               }},
    NamedCodec{"fp8", "bfloat16", 0, [](ByteView) noexcept { return Method::kFp8Bf16; }},
    NamedCodec{"fp8", "float16", 0, [](ByteView) noexcept { return Method::kFp8Fp16; }},
    NamedCodec{"fp8", "float32", 0, [](ByteView) noexcept { return Method::kFp8Fp32; }},
};

}  // namespace kvferry::codec
