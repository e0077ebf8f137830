#pragma once
// copy_many: memory to memory, for pages and buffers of whole requests, by several threads.
//
// One thread does not reach the memory's bandwidth. The work is cut into pieces that threads pull,
// so a slow one does not set the time.
//
// Threads: the caller's and up to threads_max - 1 that end before it returns. Where the system
//   refuses one, fewer do the work.

#include <cstddef>
#include <span>

#include "base/bytes.hpp"

namespace kvferry::mem {

struct Copy {
  MutableBytes to;
  ByteView from;  // as long as `to`, and apart from it
};

void copy_many(std::span<const Copy> copies, unsigned threads_max);

}  // namespace kvferry::mem
