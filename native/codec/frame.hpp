#pragma once
// Frame: the 64-byte header in front of every payload of a cache namespace. It says what the
// payload is, so that a reader takes the bytes it asked for or none.
//
// Threads, lifetime: pure functions over values.
// Failure: a FrameFault names the first check that failed; nothing throws.
// Specified in: docs/formats/frame.md, with bytes; tests/golden/frame pins it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.hpp"
#include "codec/codecs.hpp"
#include "codec/stripe.hpp"  // each frame heads one stripe

namespace kvferry::codec {

inline constexpr std::size_t kFrameSizeBytes = 64;

struct Frame {
  std::uint64_t payload_size_bytes = 0;   // of this stripe, as stored
  std::uint64_t original_size_bytes = 0;  // of the whole value, as the caller knows it
  std::uint64_t payload_checksum = 0;     // XXH3-64 of this stripe's content, as readers get it
  std::uint64_t identity = 0;             // first 8 bytes of the identity digest, little-endian
  std::uint64_t key_digest = 0;           // XXH3-64 of the value's key, without a stripe suffix
  std::uint64_t generation = 0;           // generation_of() the checksums of all stripes
  std::uint16_t stripe_index = 0;
  std::uint16_t stripe_count = 1;
  std::uint16_t flags = 0;  // none is defined
  Codec codec = Codec::kRaw;

  bool operator==(const Frame&) const = default;
};

// What a reader knows about a stripe before it arrives.
struct FrameExpectation {
  std::uint64_t identity = 0;
  std::uint64_t key_digest = 0;
  std::uint64_t payload_size_bytes = 0;  // where it is not coded
  std::uint64_t original_size_bytes = 0;
  std::uint16_t stripe_index = 0;
  std::uint16_t stripe_count = 1;
  bool decodes = false;  // the reader takes coded payloads, which are shorter
};

enum class FrameFault : std::uint8_t {
  kNone,
  // Found by decode_frame():
  kMagic,           // this is no frame
  kVersion,         // a frame of a version that we do not read
  kHeaderChecksum,  // the header was damaged
  kCodec,           // a codec that we do not read
  kFlags,           // a flag that we do not know
  kShape,           // lengths or stripe numbers contradict each other
  // Found by check_frame():
  kIdentity,  // the bytes of another model, layout or format
  kKey,       // the value of another key
  kSize,      // the value, or its stripe, has another length
  kStripe,    // another stripe, or cut into another number of them
  // Found by readers once the payload is there:
  kPayloadChecksum,  // the payload was damaged
  kGeneration,       // the stripes are of different writes
};
inline constexpr std::size_t kFrameFaultsCount = 13;

// E.g. "header checksum"; "none" for kNone.
[[nodiscard]] std::string_view name(FrameFault fault) noexcept;

// Writes the header of `frame`. It checks nothing: decode_frame() refuses what contradicts itself.
void encode_frame(const Frame& frame, std::span<std::byte, kFrameSizeBytes> header) noexcept;

// Reads a header that came from anywhere. `frame` is set only when the result is kNone, and then
// it is consistent in itself: stripe_index < stripe_count, and the payload fits the original.
[[nodiscard]] FrameFault decode_frame(std::span<const std::byte, kFrameSizeBytes> header,
                                      Frame& frame) noexcept;

// Whether a decoded frame is the one that the reader asked for.
[[nodiscard]] FrameFault check_frame(const Frame& frame, const FrameExpectation& expected) noexcept;

// What is wrong with a value that came as it is stored, not coded: the headers of all its stripes
// one behind the other, and what each stripe's bytes were summed to. `whole`: of the value, stripes
// aside. One stripe may be of any length; several are those of stripe_plan().
[[nodiscard]] FrameFault check_value(ByteView headers, std::span<const std::uint64_t> checksums,
                                     const FrameExpectation& whole) noexcept;

}  // namespace kvferry::codec
