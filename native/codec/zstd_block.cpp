#include "codec/zstd_block.hpp"

#include <array>
#include <cstdint>
#include <memory>

#include <zstd.h>

#include "codec/little_endian.hpp"

namespace kvferry::codec {
namespace {

using Plane = std::array<std::uint8_t, kZstdBlockBytesMax / 2>;

// The quickest level that counts symbols. Matches are chance among exponents: short ones, and those
// that a large table finds, cost more than they save.
constexpr int kLevel = 1;
struct Search {
  int match_min = 0;  // 0: as the level has it
  int table_log = 0;
};
constexpr Search kNumbersSearch{.match_min = 7, .table_log = 10};

struct Free {
  void operator()(ZSTD_CCtx* context) const noexcept { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const noexcept { ZSTD_freeDCtx(context); }
};

std::size_t compress(ByteView content, MutableBytes out, Search search) noexcept {
  static thread_local const std::unique_ptr<ZSTD_CCtx, Free> context(ZSTD_createCCtx());
  if (context == nullptr) return 0;
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_minMatch, search.match_min);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_hashLog, search.table_log);
  const std::size_t size =
      ZSTD_compress2(context.get(), out.data(), out.size(), content.data(), content.size());
  return ZSTD_isError(size) != 0 ? 0 : size;
}

// One frame of the present format, and nothing behind it: the library would take several, of its
// older formats too.
bool is_one_frame(ByteView block) noexcept {
  return block.size() >= sizeof(std::uint32_t) &&
         load_le<std::uint32_t>(block.data()) == ZSTD_MAGICNUMBER &&
         ZSTD_findFrameCompressedSize(block.data(), block.size()) == block.size();
}

bool decompress(ByteView block, void* to, std::size_t size) noexcept {
  static thread_local const std::unique_ptr<ZSTD_DCtx, Free> context(ZSTD_createDCtx());
  if (context == nullptr || !is_one_frame(block)) return false;
  // Into memory of the caller alone, which is as large as the block may become.
  return ZSTD_decompressDCtx(context.get(), to, size, block.data(), block.size()) == size;
}

const std::uint8_t* plain(const std::byte* bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes);
}
std::uint8_t* plain(std::byte* bytes) { return reinterpret_cast<std::uint8_t*>(bytes); }

}  // namespace

std::size_t zstd_encode(ByteView content, MutableBytes out) noexcept {
  if (content.empty()) return 0;
  return compress(content, out.first(content.size() - 1), {});
}

bool zstd_decode(ByteView block, MutableBytes content) noexcept {
  return decompress(block, content.data(), content.size());
}

std::size_t zstd_encode_numbers(ByteView content, MutableBytes out) noexcept {
  const std::size_t count = content.size() / 2;
  if (count == 0) return 0;
  const std::uint8_t* const from = plain(content.data());
  std::uint8_t* const low = plain(out.data());
  Plane exponents;
  for (std::size_t i = 0; i < count; ++i) {
    low[i] = static_cast<std::uint8_t>(from[2 * i] << 1 | from[2 * i + 1] >> 7);
    exponents[i] = static_cast<std::uint8_t>(from[2 * i + 1] << 1 | from[2 * i] >> 7);
  }
  const ByteView high = std::as_bytes(std::span(exponents)).first(count);
  const std::size_t size = compress(high, out.subspan(count, count - 1), kNumbersSearch);
  return size == 0 ? 0 : count + size;
}

bool zstd_decode_numbers(ByteView block, MutableBytes content) noexcept {
  const std::size_t count = content.size() / 2;
  if (content.size() % 2 != 0 || content.size() > kZstdBlockBytesMax || block.size() < count) {
    return false;
  }
  Plane exponents;
  if (!decompress(block.subspan(count), exponents.data(), count)) return false;
  const std::uint8_t* const low = plain(block.data());
  std::uint8_t* const to = plain(content.data());
  for (std::size_t i = 0; i < count; ++i) {
    to[2 * i] = static_cast<std::uint8_t>(low[i] >> 1 | exponents[i] << 7);
    to[2 * i + 1] = static_cast<std::uint8_t>(exponents[i] >> 1 | low[i] << 7);
  }
  return true;
}

}  // namespace kvferry::codec
