#pragma once
// Coded payloads: the content of a stripe as blocks that are shorter, written whole and read as
// the bytes arrive.
//
// Each block is 64 KiB of content (the last one less): four bytes of head, then the content as it
// is or encoded. So a reader decodes into the value's memory block by block, right behind the
// socket, and what cannot be shortened costs four bytes.
//
// Threads: functions from any; a decoder belongs to one. Failure: a payload that was damaged is
// refused, or decodes to other bytes, which the frame's checksum finds: it is that of the content.
// Nothing outside of the given memory is touched.
// Specified in: docs/formats/codecs.md.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/bytes.hpp"
#include "codec/frame.hpp"

namespace kvferry::codec {

inline constexpr std::size_t kCodedBlockBytes = 64 * kKiB;  // of content

// How much room encode_stripe() needs.
[[nodiscard]] std::size_t coded_size_max(std::size_t content_size_bytes) noexcept;

// Writes the payload and returns its length; 0: it would not be worth it, by less than 1/16.
// Requires: coded_size_max() bytes of room.
[[nodiscard]] std::size_t encode_stripe(Codec codec, ByteView content, MutableBytes out) noexcept;

// XXH3-64 of what a reader gets: of the content, or, where the codec loses something, of what is
// left of it.
[[nodiscard]] std::uint64_t content_checksum(Codec codec, ByteView content);

// The way back, for a payload that arrives in pieces.
class StripeDecoder {
 public:
  // Begins a payload; `content` is written by received() alone.
  void start(MutableBytes content, std::size_t payload_size_bytes);
  // Where the next bytes of the payload go; never empty while some are missing.
  [[nodiscard]] MutableBytes space() noexcept;
  // The first `count` bytes of space() are there. False: the payload is damaged.
  [[nodiscard]] bool received(std::size_t count) noexcept;
  // Bytes of the content that are final.
  [[nodiscard]] std::size_t filled() const noexcept { return filled_; }

 private:
  static constexpr std::size_t kHeadBytes = 4;
  static constexpr std::size_t kBufferBytes = 2 * (kHeadBytes + kCodedBlockBytes);

  std::unique_ptr<std::byte[]> buffer_;  // from the first start() on
  std::size_t buffered_ = 0;
  MutableBytes content_;
  std::size_t filled_ = 0;
  std::size_t missing_ = 0;  // bytes of the payload that have yet to come
};

}  // namespace kvferry::codec
