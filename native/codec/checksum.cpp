#include "codec/checksum.hpp"

#include <new>

#include "codec/checksum_kernel.hpp"

// The library as a header: nothing to link, and its symbols stay inside this file.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvferry::codec {
namespace {

XXH3_state_t* as_state(std::byte* bytes) noexcept {
  return std::launder(reinterpret_cast<XXH3_state_t*>(bytes));
}
const XXH3_state_t* as_state(const std::byte* bytes) noexcept {
  return std::launder(reinterpret_cast<const XXH3_state_t*>(bytes));
}

// What is shorter, as keys are, is done before another kernel has been called.
constexpr std::size_t kKernelBytesMin = 1024;

// The kernel for this processor; null: the library as it is compiled here.
const ChecksumKernel* kernel() noexcept {
#if defined(__x86_64__)
  static const ChecksumKernel* const best =
      __builtin_cpu_supports("avx2") != 0 ? avx2_kernel() : nullptr;
  return best;
#else
  return nullptr;
#endif
}

}  // namespace

std::uint64_t xxh3_64(ByteView bytes) noexcept {
  const ChecksumKernel* const fast = bytes.size() < kKernelBytesMin ? nullptr : kernel();
  return fast != nullptr ? fast->whole(bytes.data(), bytes.size())
                         : XXH3_64bits(bytes.data(), bytes.size());
}

Xxh3::Xxh3() noexcept {
  static_assert(sizeof(XXH3_state_t) <= sizeof state_ && alignof(XXH3_state_t) <= alignof(Xxh3));
  ::new (state_) XXH3_state_t{};
  reset();
}

void Xxh3::update(ByteView piece) noexcept {
  if (piece.empty()) return;
  const ChecksumKernel* const fast = piece.size() < kKernelBytesMin ? nullptr : kernel();
  if (fast != nullptr) {
    fast->update(as_state(state_), piece.data(), piece.size());
  } else {
    XXH3_64bits_update(as_state(state_), piece.data(), piece.size());
  }
}

std::uint64_t Xxh3::digest() const noexcept { return XXH3_64bits_digest(as_state(state_)); }

void Xxh3::reset() noexcept { XXH3_64bits_reset(as_state(state_)); }

}  // namespace kvferry::codec
