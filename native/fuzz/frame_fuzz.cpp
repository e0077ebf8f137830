// codec::Frame: what is decoded is what was encoded, and a reader takes only what it asked for.
//
// Input: up to 128 bytes; the first 64 as a header that came from anywhere, all of them as numbers.
#include <algorithm>
#include <array>
#include <cstring>

#include "codec/frame.hpp"
#include "codec/little_endian.hpp"
#include "fuzz/fuzz.hpp"

namespace {

using namespace kvferry::codec;
using kvferry::fuzz::require;

using Header = std::array<std::byte, kFrameSizeBytes>;

FrameExpectation expectation_of(const Frame& frame) {
  return {.identity = frame.identity,
          .key_digest = frame.key_digest,
          .payload_size_bytes =
              frame.codec == Codec::kRaw ? frame.payload_size_bytes : frame.original_size_bytes,
          .original_size_bytes = frame.original_size_bytes,
          .stripe_index = frame.stripe_index,
          .stripe_count = frame.stripe_count,
          .decodes = true};
}

void check_foreign_header(const Header& header) {
  Frame frame;
  if (decode_frame(header, frame) != FrameFault::kNone) {
    require(frame == Frame{}, "a refused header left something behind");
    return;
  }
  Header again;
  encode_frame(frame, again);
  require(again == header, "a header that is accepted means something else");
  require(check_frame(frame, expectation_of(frame)) == FrameFault::kNone, "a frame refuses itself");
}

// Small numbers, so that equal and contradicting ones are met often.
Frame frame_from(const std::byte* bytes) {
  const auto number = [&](std::size_t at) { return load_le<std::uint16_t>(bytes + at); };
  return {.payload_size_bytes = number(0),
          .original_size_bytes = number(2),
          .payload_checksum = load_le<std::uint64_t>(bytes + 4),
          .identity = number(12),
          .key_digest = number(14),
          .generation = load_le<std::uint64_t>(bytes + 16),
          .stripe_index = number(24),
          .stripe_count = number(26),
          .flags = static_cast<std::uint16_t>(bytes[28]),
          .codec = static_cast<Codec>(bytes[29])};
}

void check_written(const Frame& frame, const Frame& other) {
  Header header;
  encode_frame(frame, header);
  Frame decoded;
  const FrameFault fault = decode_frame(header, decoded);
  const bool raw = frame.codec == Codec::kRaw;
  const bool sizes_fit = frame.stripe_count == 1 && raw
                             ? frame.payload_size_bytes == frame.original_size_bytes
                             : frame.payload_size_bytes < frame.original_size_bytes;
  const FrameFault expected =
      static_cast<std::size_t>(frame.codec) >= kCodecs.size() ? FrameFault::kCodec
      : frame.flags != 0                                      ? FrameFault::kFlags
      : frame.stripe_index < frame.stripe_count && sizes_fit  ? FrameFault::kNone
                                                              : FrameFault::kShape;
  require(fault == expected, name(fault), name(expected));
  require(fault != FrameFault::kNone || decoded == frame, "encoding loses something");
  const FrameExpectation wanted = expectation_of(other);
  const bool same = frame.identity == wanted.identity && frame.key_digest == wanted.key_digest &&
                    (raw ? frame.payload_size_bytes == wanted.payload_size_bytes
                         : frame.payload_size_bytes < wanted.payload_size_bytes) &&
                    frame.original_size_bytes == wanted.original_size_bytes &&
                    frame.stripe_index == wanted.stripe_index &&
                    frame.stripe_count == wanted.stripe_count;
  require((check_frame(frame, wanted) == FrameFault::kNone) == same, "another value was accepted");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::array<std::byte, 2 * kFrameSizeBytes> bytes{};
  if (size > 0) std::memcpy(bytes.data(), data, std::min(size, bytes.size()));
  Header header;
  std::copy_n(bytes.begin(), header.size(), header.begin());
  check_foreign_header(header);
  check_written(frame_from(bytes.data()), frame_from(bytes.data() + 32));
  check_written(frame_from(bytes.data()), frame_from(bytes.data()));
  return 0;
}
