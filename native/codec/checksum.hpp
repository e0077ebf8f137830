#pragma once
// XXH3-64 (unseeded): the checksum of payloads and headers.
//
// It finds damage by hardware, bugs and mixed-up values. It is no defence against somebody who
// wants a collision: do not use it where an adversary chooses the bytes.
//
// Threads: the function from any; an Xxh3 belongs to one thread at a time.
// Specified in: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md.

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"

namespace kvferry::codec {

[[nodiscard]] std::uint64_t xxh3_64(ByteView bytes) noexcept;

// XXH3-64 of a value that arrives in pieces: the cut into pieces does not change the digest.
// The state is inside (576 bytes, 64-byte aligned; the library's header stays out of ours), so
// that an object per connection costs no allocation per value.
class Xxh3 {
 public:
  Xxh3() noexcept;

  void update(ByteView piece) noexcept;
  // The checksum of what update() has seen since the start; more pieces may follow.
  [[nodiscard]] std::uint64_t digest() const noexcept;
  // Starts a new value.
  void reset() noexcept;

 private:
  alignas(64) std::byte state_[576];
};

}  // namespace kvferry::codec
