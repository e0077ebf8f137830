// The loops of split12 for processors with AVX2: 32 numbers of each half at a time.

#include "codec/split12_kernel.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace kvferry::codec {

#if defined(__AVX2__)

namespace {

struct Planes {
  __m256i low;
  __m256i exponents;
};

__m256i load(const std::uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
void store(std::uint8_t* to, __m256i bytes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}

Planes split(const std::uint8_t* content) {
  const __m256i lower = _mm256_set1_epi16(0xff);
  __m256i a = load(content);
  __m256i b = load(content + 32);
  a = _mm256_or_si256(_mm256_slli_epi16(a, 1), _mm256_srli_epi16(a, 15));
  b = _mm256_or_si256(_mm256_slli_epi16(b, 1), _mm256_srli_epi16(b, 15));
  const __m256i low = _mm256_packus_epi16(_mm256_and_si256(a, lower), _mm256_and_si256(b, lower));
  const __m256i high = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
  // Packing goes by halves of a register; this puts them in order.
  return {_mm256_permute4x64_epi64(low, 0xd8), _mm256_permute4x64_epi64(high, 0xd8)};
}

void join(__m256i low, __m256i exponents, std::uint8_t* content) {
  low = _mm256_permute4x64_epi64(low, 0xd8);
  exponents = _mm256_permute4x64_epi64(exponents, 0xd8);
  __m256i a = _mm256_unpacklo_epi8(low, exponents);
  __m256i b = _mm256_unpackhi_epi8(low, exponents);
  a = _mm256_or_si256(_mm256_srli_epi16(a, 1), _mm256_slli_epi16(a, 15));
  b = _mm256_or_si256(_mm256_srli_epi16(b, 1), _mm256_slli_epi16(b, 15));
  store(content, a);
  store(content + 32, b);
}

std::uint32_t rare_among(__m256i codes) {
  const __m256i rare = _mm256_cmpeq_epi8(codes, _mm256_set1_epi8(kSplit12Rare));
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(rare));
}

__m256i codes_of(__m256i exponents, std::uint8_t first, Split12Rare& rare) {
  const __m256i last_place = _mm256_set1_epi8(kSplit12Exponents - 1);
  const __m256i place = _mm256_sub_epi8(exponents, _mm256_set1_epi8(static_cast<char>(first)));
  const __m256i known = _mm256_cmpeq_epi8(_mm256_min_epu8(place, last_place), place);
  const __m256i zero = _mm256_cmpeq_epi8(exponents, _mm256_setzero_si256());
  __m256i codes = _mm256_blendv_epi8(_mm256_set1_epi8(kSplit12Rare),
                                     _mm256_add_epi8(place, _mm256_set1_epi8(1)), known);
  codes = _mm256_andnot_si256(zero, codes);
  if (std::uint32_t left = rare_among(codes); left != 0) {
    alignas(32) std::uint8_t bytes[32];
    store(bytes, exponents);
    for (; left != 0; left &= left - 1) *rare.next++ = bytes[__builtin_ctz(left)];
  }
  return codes;
}

void encode(const std::uint8_t* content, std::size_t count, std::uint8_t first, std::uint8_t* low,
            std::uint8_t* codes, Split12Rare* rare) {
  const std::size_t half = count / 2;
  for (std::size_t i = 0; i < half; i += 32) {
    const Planes a = split(content + 2 * i);
    const Planes b = split(content + 2 * (i + half));
    store(low + i, a.low);
    store(low + i + half, b.low);
    const __m256i lower = codes_of(a.exponents, first, rare[0]);
    const __m256i upper = codes_of(b.exponents, first, rare[1]);
    store(codes + i, _mm256_or_si256(lower, _mm256_slli_epi16(upper, 4)));
  }
}

// False: there are not as many.
bool put_rare(__m256i& exponents, std::uint32_t left, Split12Rare& rare) {
  if (rare.end - rare.next < __builtin_popcount(left)) return false;
  alignas(32) std::uint8_t bytes[32];
  store(bytes, exponents);
  for (; left != 0; left &= left - 1) bytes[__builtin_ctz(left)] = *rare.next++;
  exponents = load(bytes);
  return true;
}

bool decode(const std::uint8_t* low, const std::uint8_t* codes, std::size_t count,
            const std::uint8_t* table, Split12Rare* rare, std::uint8_t* content) {
  const std::size_t half = count / 2;
  const __m256i lower = _mm256_set1_epi8(15);
  const __m256i exponents =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  for (std::size_t i = 0; i < half; i += 32) {
    const __m256i both = load(codes + i);
    const __m256i a = _mm256_and_si256(both, lower);
    const __m256i b = _mm256_and_si256(_mm256_srli_epi16(both, 4), lower);
    __m256i of_a = _mm256_shuffle_epi8(exponents, a);
    __m256i of_b = _mm256_shuffle_epi8(exponents, b);
    const std::uint32_t rare_a = rare_among(a);
    const std::uint32_t rare_b = rare_among(b);
    if (rare_a != 0 && !put_rare(of_a, rare_a, rare[0])) return false;
    if (rare_b != 0 && !put_rare(of_b, rare_b, rare[1])) return false;
    join(load(low + i), of_a, content + 2 * i);
    join(load(low + i + half), of_b, content + 2 * (i + half));
  }
  return rare[0].next == rare[0].end && rare[1].next == rare[1].end;
}

constexpr Split12Kernel kKernel{.encode = &encode, .decode = &decode};

}  // namespace

const Split12Kernel* split12_avx2() noexcept { return &kKernel; }

#else

const Split12Kernel* split12_avx2() noexcept { return nullptr; }

#endif

}  // namespace kvferry::codec
