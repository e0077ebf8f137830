#pragma once
// copy_past_caches: memcpy for bytes that nobody will read soon, around the processor's caches.
//
// An ordinary store first reads the line that it overwrites; a streaming store does not, which
// saves a third of the memory's traffic. memcpy does the same by itself, but only for single copies
// that are larger than a cache, and a request is many smaller ones. Where the processor has no such
// stores this is memcpy.
//
// Threads, lifetime: a pure function over memory. When it returns, the bytes are ordered before
// whatever the thread publishes next, as with memcpy.

#include "base/bytes.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvferry::mem {

// Requires: as many bytes on both sides, apart from each other.
inline void copy_past_caches(MutableBytes to, ByteView from) {
#if defined(__SSE2__)
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kAhead = 1024;  // what is fetched before it is needed
  std::byte* out = to.data();
  const std::byte* in = from.data();
  std::size_t left = to.size();
  // Streaming stores want whole lines.
  const std::size_t head =
      std::min(left, (kLine - reinterpret_cast<std::uintptr_t>(out) % kLine) % kLine);
  std::memcpy(out, in, head);
  out += head;
  in += head;
  left -= head;
  for (; left >= kLine; left -= kLine, out += kLine, in += kLine) {
    if (left > kAhead) _mm_prefetch(reinterpret_cast<const char*>(in + kAhead), _MM_HINT_NTA);
    const auto* source = reinterpret_cast<const __m128i*>(in);
    auto* target = reinterpret_cast<__m128i*>(out);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(out, in, left);
  _mm_sfence();  // streaming stores are not ordered by what publishes them
#else
  std::memcpy(to.data(), from.data(), to.size());
#endif
}

}  // namespace kvferry::mem
