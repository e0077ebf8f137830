#pragma once
// The file of one value: a block that says what it is, then the payload in whole blocks.
//
// The block begins with the frame of codec/frame.hpp and adds what a frame has no room for: the
// whole key, the whole identity, the moment of expiry. So a directory can be listed, and payload
// lies aligned for direct I/O.
//
// Threads, lifetime: pure functions over values. Failure: a FrameFault names the first check that
// failed. Specified in: docs/formats/file.md.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "codec/frame.hpp"
#include "connector/connector.hpp"

namespace kvferry::connector {

inline constexpr std::size_t kFileBlockBytes = 4096;

using FileBlock = std::span<std::byte, kFileBlockBytes>;
using ConstFileBlock = std::span<const std::byte, kFileBlockBytes>;

struct FileHead {
  std::string key;  // with the prefix
  Identity identity{};
  std::uint64_t payload_size_bytes = 0;
  std::uint64_t payload_checksum = 0;
  std::int64_t expires_at_ms = 0;  // since 1970; 0 = never

  bool operator==(const FileHead&) const = default;
};

// Length of the file. One that expires is a block longer: so files need not be opened to know.
[[nodiscard]] constexpr std::size_t file_size(std::size_t payload_bytes, bool expires) noexcept {
  const std::size_t blocks = (payload_bytes + kFileBlockBytes - 1) / kFileBlockBytes;
  return (1 + blocks + (expires ? 1 : 0)) * kFileBlockBytes;
}

// "ab/0123456789abcdef": the directory and the name that a key has.
[[nodiscard]] std::string file_name(std::string_view key);

void encode_file_head(const FileHead& head, FileBlock block) noexcept;

// Reads a block that came from anywhere; `head` is set only when the result is kNone.
[[nodiscard]] codec::FrameFault decode_file_head(ConstFileBlock block, FileHead& head);

// Whether it is the value that the reader asked for.
[[nodiscard]] codec::FrameFault check_file_head(const FileHead& head, std::string_view key,
                                                const Space& space) noexcept;

}  // namespace kvferry::connector
