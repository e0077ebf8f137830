#pragma once
// The keys by which vLLM names blocks: the hash of a block, and four bytes for its group of layers.
//
// A chunk in a store is named by 128 bits of that: those of the hash for the first group, whose
// bytes are zero, and of SHA-256 over the whole key for the others, or where a key is short.
// Threads: any; nothing is shared.

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "cache/hashes.hpp"

namespace kvferry::cache {

// Fails with: kSystem when OpenSSL does.
Result<ChunkHash> hash_of_vllm_key(ByteView key);

}  // namespace kvferry::cache
