#include "connector/file_format.hpp"

#include <algorithm>
#include <cstring>

#include "codec/checksum.hpp"
#include "codec/little_endian.hpp"
#include "codec/stripe.hpp"

namespace kvferry::connector {
namespace {

constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kKeySizeBytesMax = 512;

// Where each field starts; docs/formats/file.md has the same table.
enum Offset : std::size_t {
  kAtFrame = 0,
  kAtVersion = 64,
  kAtKeyLength = 66,
  kAtReserved = 68,
  kAtExpiry = 72,
  kAtIdentity = 80,
  kAtKey = 96,
  kAtBlockChecksum = kFileBlockBytes - 8,
};

std::uint64_t block_checksum(ConstFileBlock block) noexcept {
  return codec::xxh3_64(block.first<kAtBlockChecksum>());
}

}  // namespace

std::string file_name(std::string_view key) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const std::uint64_t hash = codec::xxh3_64(as_bytes(key));
  std::string name = "xx/";
  for (int shift = 60; shift >= 0; shift -= 4) name += kDigits[(hash >> shift) & 15];
  name[0] = name[3];
  name[1] = name[4];
  return name;
}

void encode_file_head(const FileHead& head, FileBlock block) noexcept {
  std::ranges::fill(block, std::byte{0});
  codec::encode_frame({.payload_size_bytes = head.payload_size_bytes,
                       .original_size_bytes = head.payload_size_bytes,
                       .payload_checksum = head.payload_checksum,
                       .identity = codec::load_le<std::uint64_t>(head.identity.data()),
                       .key_digest = codec::xxh3_64(as_bytes(head.key)),
                       .generation = codec::generation_of(std::span(&head.payload_checksum, 1))},
                      block.first<codec::kFrameSizeBytes>());
  std::byte* const to = block.data();
  codec::store_le(kVersion, to + kAtVersion);
  codec::store_le(static_cast<std::uint16_t>(head.key.size()), to + kAtKeyLength);
  codec::store_le(static_cast<std::uint64_t>(head.expires_at_ms), to + kAtExpiry);
  std::ranges::copy(head.identity, to + kAtIdentity);
  std::ranges::copy(as_bytes(head.key), to + kAtKey);
  codec::store_le(block_checksum(block), to + kAtBlockChecksum);
}

codec::FrameFault decode_file_head(ConstFileBlock block, FileHead& head) {
  codec::Frame frame;
  const codec::FrameFault fault = codec::decode_frame(block.first<codec::kFrameSizeBytes>(), frame);
  if (fault != codec::FrameFault::kNone) return fault;
  const std::byte* const from = block.data();
  if (codec::load_le<std::uint16_t>(from + kAtVersion) != kVersion) {
    return codec::FrameFault::kVersion;
  }
  if (codec::load_le<std::uint64_t>(from + kAtBlockChecksum) != block_checksum(block)) {
    return codec::FrameFault::kHeaderChecksum;
  }
  const std::size_t key_length = codec::load_le<std::uint16_t>(from + kAtKeyLength);
  if (key_length > kKeySizeBytesMax || frame.stripe_count != 1) return codec::FrameFault::kShape;
  if (frame.codec != codec::Codec::kRaw) return codec::FrameFault::kCodec;
  const std::string_view key = as_text(block.subspan(kAtKey, key_length));
  FileHead found;
  std::copy_n(from + kAtIdentity, found.identity.size(), found.identity.begin());
  // The two halves were written together: they agree, or a writer had a bug.
  if (frame.key_digest != codec::xxh3_64(as_bytes(key)) ||
      frame.identity != codec::load_le<std::uint64_t>(found.identity.data())) {
    return codec::FrameFault::kShape;
  }
  found.key = key;
  found.payload_size_bytes = frame.payload_size_bytes;
  found.payload_checksum = frame.payload_checksum;
  found.expires_at_ms = static_cast<std::int64_t>(codec::load_le<std::uint64_t>(from + kAtExpiry));
  head = std::move(found);
  return codec::FrameFault::kNone;
}

codec::FrameFault check_file_head(const FileHead& head, std::string_view key,
                                  const Space& space) noexcept {
  if (head.identity != space.identity) return codec::FrameFault::kIdentity;
  if (head.key != key) return codec::FrameFault::kKey;
  if (head.payload_size_bytes != space.value_size_bytes) return codec::FrameFault::kSize;
  return codec::FrameFault::kNone;
}

}  // namespace kvferry::connector
