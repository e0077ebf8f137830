#include "cache/vllm_key.hpp"

#include <algorithm>
#include <array>

#include "cache/chunk_hash.hpp"

namespace kvferry::cache {
namespace {

constexpr std::array<std::byte, 4> kFirstGroup{};

}  // namespace

Result<ChunkHash> hash_of_vllm_key(ByteView key) {
  if (key.size() >= kHashBytes + kFirstGroup.size() &&
      std::ranges::equal(key.last(kFirstGroup.size()), kFirstGroup)) {
    return ChunkHash::load(key.data());
  }
  return hash_of(key);
}

}  // namespace kvferry::cache
