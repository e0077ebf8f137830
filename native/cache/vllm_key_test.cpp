#include "cache/vllm_key.hpp"

#include <gtest/gtest.h>

#include <string>

#include "cache/chunk_hash.hpp"

namespace kvferry::cache {
namespace {

const std::string kHash = "0123456789abcdef0123456789ABCDEF";  // SHA-256 has 32 bytes

ChunkHash of_key(const std::string& key) { return *hash_of_vllm_key(as_bytes(key)); }

TEST(VllmKey, OfTheFirstGroupIsNamedByItsHash) {
  const std::string first(4, '\0');
  EXPECT_EQ(of_key(kHash + first), ChunkHash::load(as_bytes(kHash).data()));
  EXPECT_EQ(of_key(kHash.substr(0, 16) + first), ChunkHash::load(as_bytes(kHash).data()));
}

TEST(VllmKey, OfAnotherGroupIsNamedByAllOfIt) {
  const std::string key = kHash + std::string("\0\0\0\1", 4);
  EXPECT_EQ(of_key(key), *hash_of(as_bytes(key)));
  EXPECT_NE(of_key(key), of_key(kHash + std::string("\0\0\0\2", 4)));
}

TEST(VllmKey, ThatIsShortIsNamedByAllOfIt) {
  for (const std::string& key : {std::string(), std::string(4, '\0'), std::string(19, '\0')}) {
    EXPECT_EQ(of_key(key), *hash_of(as_bytes(key))) << key.size();
  }
}

}  // namespace
}  // namespace kvferry::cache
