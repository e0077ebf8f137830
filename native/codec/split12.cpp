#include "codec/split12.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "codec/little_endian.hpp"
#include "codec/split12_kernel.hpp"

namespace kvferry::codec {
namespace {

constexpr std::size_t kTableBytes = 16;
constexpr std::size_t kNumbersMax = kSplit12BlockBytesMax / 2;
constexpr std::size_t kSamplesMax = 1024;  // of a block
// Places of a value that are looked at before all of it is encoded, and numbers at each.
constexpr std::size_t kLooks = 8;
constexpr std::size_t kLookNumbers = 512;

const std::uint8_t* plain(const std::byte* bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes);
}
std::uint8_t* plain(std::byte* bytes) { return reinterpret_cast<std::uint8_t*>(bytes); }

const Split12Kernel& kernel() noexcept {
#if defined(__x86_64__)
  static const Split12Kernel* const best =
      __builtin_cpu_supports("avx2") != 0 ? split12_avx2() : nullptr;
  if (best != nullptr) return *best;
#endif
  return split12_plain();
}

struct Window {
  std::uint8_t first = 0;
  std::size_t outside = 0;  // of the samples
  std::size_t samples = 0;
};

// The 14 neighbouring exponents that most numbers have, by a part of them.
Window choose_window(const std::uint8_t* content, std::size_t count) noexcept {
  std::array<std::uint16_t, 256> seen{};
  // Odd, because the numbers of one channel are a power of two apart.
  const std::size_t step = (count / kSamplesMax) | 1;
  Window window;
  for (std::size_t i = 0; i < count; i += step) {
    ++seen[static_cast<std::uint8_t>(content[2 * i + 1] << 1 | content[2 * i] >> 7)];
    ++window.samples;
  }
  std::size_t inside = 0;
  for (std::size_t i = 1; i <= kSplit12Exponents; ++i) inside += seen[i];
  std::size_t most = inside;
  window.first = 1;
  for (std::size_t first = 2; first + kSplit12Exponents <= seen.size(); ++first) {
    inside += seen[first + kSplit12Exponents - 1];
    inside -= seen[first - 1];
    if (inside > most) {
      most = inside;
      window.first = static_cast<std::uint8_t>(first);
    }
  }
  window.outside = window.samples - most - seen[0];
  return window;
}

}  // namespace

std::size_t split12_encode(ByteView content, MutableBytes out) noexcept {
  const std::size_t count = content.size() / 2;
  const std::size_t fixed = kSplit12HeadBytes + count + count / 2;
  const std::size_t size_max = content.size() / 16 * 15;
  if (fixed > size_max) return 0;
  const Window window = choose_window(plain(content.data()), count);

  std::array<std::array<std::uint8_t, kNumbersMax / 2>, 2> found;
  Split12Rare rare[2] = {{found[0].data(), nullptr}, {found[1].data(), nullptr}};
  std::byte* to = out.data();
  kernel().encode(plain(content.data()), count, window.first, plain(to + kSplit12HeadBytes),
                  plain(to + kSplit12HeadBytes + count), rare);
  const auto lower = static_cast<std::size_t>(rare[0].next - found[0].data());
  const auto upper = static_cast<std::size_t>(rare[1].next - found[1].data());
  const std::size_t size = fixed + lower + upper;
  if (size > size_max) return 0;

  store_le(static_cast<std::uint16_t>(lower), to);
  store_le(static_cast<std::uint16_t>(upper), to + 2);
  std::array<std::uint8_t, kTableBytes> table{};
  for (std::size_t i = 0; i < kSplit12Exponents; ++i) {
    table[i + 1] = static_cast<std::uint8_t>(window.first + i);
  }
  std::memcpy(to + 4, table.data(), table.size());
  std::memcpy(to + fixed, found[0].data(), lower);
  std::memcpy(to + fixed + lower, found[1].data(), upper);
  return size;
}

bool split12_decode(ByteView block, MutableBytes content) noexcept {
  const std::size_t count = content.size() / 2;
  const std::size_t fixed = kSplit12HeadBytes + count + count / 2;
  if (content.size() % kSplit12UnitBytes != 0 || block.size() < fixed) return false;
  const std::size_t lower = load_le<std::uint16_t>(block.data());
  const std::size_t upper = load_le<std::uint16_t>(block.data() + 2);
  if (block.size() != fixed + lower + upper) return false;
  std::array<std::uint8_t, kTableBytes> table;
  std::memcpy(table.data(), block.data() + 4, table.size());
  // The kernels read these and write none of them.
  std::uint8_t* const behind = const_cast<std::uint8_t*>(plain(block.data() + fixed));
  Split12Rare rare[2] = {{behind, behind + lower}, {behind + lower, behind + lower + upper}};
  const std::byte* const low = block.data() + kSplit12HeadBytes;
  return kernel().decode(plain(low), plain(low + count), count, table.data(), rare,
                         plain(content.data()));
}

bool split12_pays(ByteView content) noexcept {
  const std::size_t count = content.size() / 2;
  const std::size_t at_once = std::min(count, kLookNumbers);
  std::size_t outside = 0, samples = 0;
  for (std::size_t look = 0; look < kLooks; ++look) {
    const std::size_t start = (count - at_once) / kLooks * look;
    const Window window = choose_window(plain(content.data()) + 2 * start, at_once);
    outside += window.outside;
    samples += window.samples;
  }
  return samples > 0 && outside * 3 < samples;
}

std::size_t split12_encode_any(ByteView content, MutableBytes out) noexcept {
  const std::size_t rest = content.size() % kSplit12UnitBytes;
  const std::size_t whole = content.size() - rest;
  const std::size_t length = whole > 0 ? split12_encode(content.first(whole), out) : 0;
  if (length == 0) return 0;
  std::memcpy(out.data() + length, content.data() + whole, rest);
  return length + rest;
}

bool split12_decode_any(ByteView block, MutableBytes content) noexcept {
  const std::size_t rest = content.size() % kSplit12UnitBytes;
  const std::size_t whole = content.size() - rest;
  if (block.size() < rest) return false;
  std::memcpy(content.data() + whole, block.data() + block.size() - rest, rest);
  return split12_decode(block.first(block.size() - rest), content.first(whole));
}

}  // namespace kvferry::codec
