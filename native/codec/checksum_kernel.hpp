#pragma once
// The part of XXH3-64 that takes the time, compiled for processors with AVX2: twice as fast where
// the bytes are in a cache, as they are right after they were received.
//
// The state is that of the library, whichever kernel worked on it: kernels may take turns.
// Threads: any.
// The source is compiled with -mavx2, so it includes nothing whose inline functions the linker
// could choose for others: hence plain pointers.

#include <cstddef>
#include <cstdint>

namespace kvferry::codec {

struct ChecksumKernel {
  std::uint64_t (*whole)(const void* data, std::size_t size);
  void (*update)(void* state, const void* data, std::size_t size);  // a XXH3_state_t
};

// Null where the compiler did not make it. Requires: the processor has AVX2.
const ChecksumKernel* avx2_kernel() noexcept;

}  // namespace kvferry::codec
