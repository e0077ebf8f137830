#include "codec/checksum_kernel.hpp"

#if defined(__AVX2__)
// Further ahead than the library does: payloads come from memory, which takes longer to answer.
#define XXH_PREFETCH_DIST 2048
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

namespace kvferry::codec {

#if defined(__AVX2__)

namespace {

std::uint64_t whole(const void* data, std::size_t size) { return XXH3_64bits(data, size); }

void update(void* state, const void* data, std::size_t size) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, size);
}

constexpr ChecksumKernel kKernel{.whole = &whole, .update = &update};

}  // namespace

const ChecksumKernel* avx2_kernel() noexcept { return &kKernel; }

#else

const ChecksumKernel* avx2_kernel() noexcept { return nullptr; }

#endif

}  // namespace kvferry::codec
