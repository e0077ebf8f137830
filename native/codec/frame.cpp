#include "codec/frame.hpp"

#include <algorithm>
#include <array>

#include "codec/checksum.hpp"
#include "codec/little_endian.hpp"

namespace kvferry::codec {
namespace {

constexpr std::array kMagic = {std::byte{'K'}, std::byte{'V'}, std::byte{'F'}, std::byte{'Y'}};
constexpr std::uint8_t kVersion = 1;

// Where each field starts; docs/formats/frame.md has the same table.
enum Offset : std::size_t {
  kAtMagic = 0,
  kAtVersion = 4,
  kAtCodec = 5,
  kAtFlags = 6,
  kAtPayloadSize = 8,
  kAtOriginalSize = 16,
  kAtPayloadChecksum = 24,
  kAtIdentity = 32,
  kAtKeyDigest = 40,
  kAtGeneration = 48,
  kAtStripeIndex = 56,
  kAtStripeCount = 58,
  kAtHeaderChecksum = 60,
};

std::uint32_t header_checksum(std::span<const std::byte, kFrameSizeBytes> header) noexcept {
  return static_cast<std::uint32_t>(xxh3_64(header.first<kAtHeaderChecksum>()));
}

bool consistent(const Frame& frame) noexcept {
  if (frame.stripe_index >= frame.stripe_count) return false;
  if (frame.stripe_count == 1 && frame.codec == Codec::kRaw) {
    return frame.payload_size_bytes == frame.original_size_bytes;
  }
  return frame.payload_size_bytes < frame.original_size_bytes;
}

}  // namespace

std::string_view name(FrameFault fault) noexcept {
  switch (fault) {
    case FrameFault::kNone:
      return "none";
    case FrameFault::kMagic:
      return "magic";
    case FrameFault::kVersion:
      return "version";
    case FrameFault::kHeaderChecksum:
      return "header checksum";
    case FrameFault::kCodec:
      return "codec";
    case FrameFault::kFlags:
      return "flags";
    case FrameFault::kShape:
      return "shape";
    case FrameFault::kIdentity:
      return "identity";
    case FrameFault::kKey:
      return "key";
    case FrameFault::kSize:
      return "size";
    case FrameFault::kStripe:
      return "stripe";
    case FrameFault::kPayloadChecksum:
      return "payload checksum";
    case FrameFault::kGeneration:
      return "generation";
  }
  return "?";
}

void encode_frame(const Frame& frame, std::span<std::byte, kFrameSizeBytes> header) noexcept {
  std::byte* const to = header.data();
  std::copy(kMagic.begin(), kMagic.end(), to + kAtMagic);
  store_le(kVersion, to + kAtVersion);
  store_le(static_cast<std::uint8_t>(frame.codec), to + kAtCodec);
  store_le(frame.flags, to + kAtFlags);
  store_le(frame.payload_size_bytes, to + kAtPayloadSize);
  store_le(frame.original_size_bytes, to + kAtOriginalSize);
  store_le(frame.payload_checksum, to + kAtPayloadChecksum);
  store_le(frame.identity, to + kAtIdentity);
  store_le(frame.key_digest, to + kAtKeyDigest);
  store_le(frame.generation, to + kAtGeneration);
  store_le(frame.stripe_index, to + kAtStripeIndex);
  store_le(frame.stripe_count, to + kAtStripeCount);
  store_le(header_checksum(header), to + kAtHeaderChecksum);
}

FrameFault decode_frame(std::span<const std::byte, kFrameSizeBytes> header, Frame& frame) noexcept {
  const std::byte* const from = header.data();
  if (!std::equal(kMagic.begin(), kMagic.end(), from + kAtMagic)) return FrameFault::kMagic;
  // Before the checksum: another version may keep it elsewhere.
  if (load_le<std::uint8_t>(from + kAtVersion) != kVersion) return FrameFault::kVersion;
  if (load_le<std::uint32_t>(from + kAtHeaderChecksum) != header_checksum(header)) {
    return FrameFault::kHeaderChecksum;
  }
  const auto codec = static_cast<Codec>(load_le<std::uint8_t>(from + kAtCodec));
  if (static_cast<std::size_t>(codec) >= kCodecs.size()) return FrameFault::kCodec;
  if (load_le<std::uint16_t>(from + kAtFlags) != 0) return FrameFault::kFlags;

  const Frame decoded{
      .payload_size_bytes = load_le<std::uint64_t>(from + kAtPayloadSize),
      .original_size_bytes = load_le<std::uint64_t>(from + kAtOriginalSize),
      .payload_checksum = load_le<std::uint64_t>(from + kAtPayloadChecksum),
      .identity = load_le<std::uint64_t>(from + kAtIdentity),
      .key_digest = load_le<std::uint64_t>(from + kAtKeyDigest),
      .generation = load_le<std::uint64_t>(from + kAtGeneration),
      .stripe_index = load_le<std::uint16_t>(from + kAtStripeIndex),
      .stripe_count = load_le<std::uint16_t>(from + kAtStripeCount),
      .codec = codec,
  };
  if (!consistent(decoded)) return FrameFault::kShape;
  frame = decoded;
  return FrameFault::kNone;
}

FrameFault check_frame(const Frame& frame, const FrameExpectation& expected) noexcept {
  if (frame.codec != Codec::kRaw && !expected.decodes) return FrameFault::kCodec;
  if (frame.identity != expected.identity) return FrameFault::kIdentity;
  if (frame.key_digest != expected.key_digest) return FrameFault::kKey;
  // Before the stripes: a value of another length is usually also cut differently.
  if (frame.original_size_bytes != expected.original_size_bytes) return FrameFault::kSize;
  if (frame.stripe_index != expected.stripe_index || frame.stripe_count != expected.stripe_count) {
    return FrameFault::kStripe;
  }
  const bool fits = frame.codec == Codec::kRaw
                        ? frame.payload_size_bytes == expected.payload_size_bytes
                        : frame.payload_size_bytes < expected.payload_size_bytes;
  return fits ? FrameFault::kNone : FrameFault::kSize;
}

FrameFault check_value(ByteView headers, std::span<const std::uint64_t> checksums,
                       const FrameExpectation& whole) noexcept {
  const std::size_t count = checksums.size();
  if (count == 0 || headers.size() != count * kFrameSizeBytes) return FrameFault::kShape;
  const StripePlan plan = stripe_plan(whole.original_size_bytes);
  if (count > 1 && plan.count != count) return FrameFault::kStripe;
  const std::uint64_t generation = generation_of(checksums);
  for (std::size_t index = 0; index < count; ++index) {
    FrameExpectation expected = whole;
    expected.payload_size_bytes =
        count > 1 ? stripe_extent(plan, index).size_bytes : whole.original_size_bytes;
    expected.stripe_index = static_cast<std::uint16_t>(index);
    expected.stripe_count = static_cast<std::uint16_t>(count);
    Frame frame;
    FrameFault fault =
        decode_frame(headers.subspan(index * kFrameSizeBytes).first<kFrameSizeBytes>(), frame);
    if (fault == FrameFault::kNone) fault = check_frame(frame, expected);
    if (fault != FrameFault::kNone) return fault;
    if (frame.payload_checksum != checksums[index]) return FrameFault::kPayloadChecksum;
    if (frame.generation != generation) return FrameFault::kGeneration;
  }
  return FrameFault::kNone;
}

}  // namespace kvferry::codec
