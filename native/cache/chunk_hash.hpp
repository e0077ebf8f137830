#pragma once
// Chunk hashes: SHA-256 chained over the tokens of a prompt, cut to 128 bits.
//
//   hash[-1] = cut("kvferry chunk v1\0" + salt)
//   hash[i]  = cut(hash[i-1] + the tokens of chunk i, each as a little-endian u32)
//
// Byte for byte what kvferry.chunks.keys computes, which is the specification and the tests'
// oracle. Threads: any; nothing is shared.

#include <cstdint>
#include <span>

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "cache/hashes.hpp"

namespace kvferry::cache {

// The parent of the first chunk of every prompt. Fails with: kSystem when OpenSSL does.
Result<ChunkHash> root_hash(ByteView salt);

// The SHA-256 of the bytes, cut to 128 bits. Fails with: kSystem when OpenSSL does.
Result<ChunkHash> hash_of(ByteView bytes);

// Writes the hash of every full chunk behind `parent`; tokens behind the last one have none.
// Requires: chunk_size >= 1; `hashes` has 16 bytes for each of tokens.size() / chunk_size chunks.
// Fails with: kSystem when OpenSSL does.
Outcome hash_chunks(std::span<const std::uint32_t> tokens, std::size_t chunk_size,
                    const ChunkHash& parent, MutableBytes hashes);

}  // namespace kvferry::cache
