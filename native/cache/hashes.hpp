#pragma once
// ChunkHash, the 128 bits that name a chunk, and Hashes, a view of those of one request.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bytes.hpp"

namespace kvferry::cache {

inline constexpr std::size_t kHashBytes = 16;

struct ChunkHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  // Requires: 16 readable bytes.
  static ChunkHash load(const std::byte* bytes) noexcept {
    ChunkHash hash;
    std::memcpy(&hash, bytes, kHashBytes);
    return hash;
  }
  void store(std::byte* bytes) const noexcept { std::memcpy(bytes, this, kHashBytes); }

  // 64 well mixed bits for tables. Engines may bring hashes of their own, and simulations count
  // upwards, so nothing is taken for random here.
  [[nodiscard]] std::uint64_t mixed() const noexcept {
    std::uint64_t bits = low ^ (high * 0x9E37'79B9'7F4A'7C15ull);
    bits = (bits ^ (bits >> 32)) * 0xD6E8'FEB8'6659'FD93ull;
    bits = (bits ^ (bits >> 32)) * 0xD6E8'FEB8'6659'FD93ull;
    return bits ^ (bits >> 32);
  }

  bool operator==(const ChunkHash&) const = default;
};
static_assert(sizeof(ChunkHash) == kHashBytes);

// The hashes of a request, root first. Valid as long as the bytes that it was made from.
class Hashes {
 public:
  Hashes() = default;
  // Requires: a multiple of 16 bytes.
  explicit Hashes(ByteView bytes) noexcept : bytes_(bytes) {}

  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size() / kHashBytes; }
  ChunkHash operator[](std::size_t index) const noexcept {
    return ChunkHash::load(bytes_.data() + index * kHashBytes);
  }
  // Requires: begin + count <= size().
  [[nodiscard]] Hashes part(std::size_t begin, std::size_t count) const noexcept {
    return Hashes(bytes_.subspan(begin * kHashBytes, count * kHashBytes));
  }

 private:
  ByteView bytes_;
};

}  // namespace kvferry::cache
