#include "cache/chunk_hash.hpp"

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <memory>
#include <string_view>
#include <vector>

namespace kvferry::cache {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kRoot = "kvferry chunk v1\0"sv;

Error failure() { return Error{Errc::kSystem, "SHA-256 is not available in this OpenSSL"}; }

// One context for all the chunks of a call: setting one up costs more than hashing a chunk.
class Sha256 {
 public:
  static Result<Sha256> open() {
    Sha256 sha;
    sha.context_.reset(EVP_MD_CTX_new());
    sha.algorithm_.reset(EVP_MD_fetch(nullptr, "SHA256", nullptr));
    if (!sha.context_ || !sha.algorithm_ ||
        EVP_DigestInit_ex2(sha.context_.get(), sha.algorithm_.get(), nullptr) != 1) {
      return failure();
    }
    return sha;
  }

  // The digest of both pieces, cut to 128 bits.
  [[nodiscard]] bool cut(ByteView first, ByteView second, ChunkHash& hash) {
    std::array<std::byte, EVP_MAX_MD_SIZE> digest;
    EVP_MD_CTX* context = context_.get();
    if (EVP_DigestInit_ex2(context, nullptr, nullptr) != 1 ||
        EVP_DigestUpdate(context, first.data(), first.size()) != 1 ||
        EVP_DigestUpdate(context, second.data(), second.size()) != 1 ||
        EVP_DigestFinal_ex(context, reinterpret_cast<unsigned char*>(digest.data()), nullptr) !=
            1) {
      return false;
    }
    hash = ChunkHash::load(digest.data());
    return true;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
    void operator()(EVP_MD* algorithm) const { EVP_MD_free(algorithm); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
  std::unique_ptr<EVP_MD, Free> algorithm_;
};

Result<ChunkHash> cut_of(ByteView first, ByteView second) {
  auto sha = Sha256::open();
  if (!sha) return sha.error();
  ChunkHash hash;
  if (!(*sha).cut(first, second, hash)) return failure();
  return hash;
}

}  // namespace

Result<ChunkHash> root_hash(ByteView salt) { return cut_of(as_bytes(kRoot), salt); }

Result<ChunkHash> hash_of(ByteView bytes) { return cut_of(bytes, {}); }

Outcome hash_chunks(std::span<const std::uint32_t> tokens, std::size_t chunk_size,
                    const ChunkHash& parent, MutableBytes hashes) {
  auto sha = Sha256::open();
  if (!sha) return sha.error();
  ChunkHash hash = parent;
  std::array<std::byte, kHashBytes> previous;
  std::vector<std::uint32_t> swapped;
  for (std::size_t chunk = 0; chunk < tokens.size() / chunk_size; ++chunk) {
    auto words = tokens.subspan(chunk * chunk_size, chunk_size);
    if constexpr (std::endian::native == std::endian::big) {
      swapped.assign(words.begin(), words.end());
      for (auto& word : swapped) word = __builtin_bswap32(word);
      words = swapped;
    }
    hash.store(previous.data());
    if (!(*sha).cut(previous, std::as_bytes(words), hash)) return failure();
    hash.store(hashes.data() + chunk * kHashBytes);
  }
  return Done{};
}

}  // namespace kvferry::cache
