#pragma once
// BlockMap: where the blocks of a paged cache lie, and the copies between them and dense buffers.
//
// An inference engine keeps KV in numbered blocks. What belongs to one block is scattered: each
// layer has a piece, or two of them, or one for each head. A region is one of these pieces, of all
// blocks. A buffer has one block after the other within each region, and one region after the
// other: [region][block][row].
//
// Lifetime: the memory of the regions is the caller's, and outlives this object.
// Threads: any; nothing changes after open().

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "mem/copy.hpp"

namespace kvferry::mem {

struct BlockRegion {
  MutableBytes memory;
  std::size_t offset_bytes = 0;        // of block 0
  std::size_t block_stride_bytes = 0;  // from one block to the next
  std::size_t rows = 1;                // runs of consecutive bytes in a block
  std::size_t row_stride_bytes = 0;    // from one run to the next
  std::size_t row_bytes = 0;
};

class BlockMap {
 public:
  // Fails with: kInvalidArgument for a region that is empty, overlaps itself, or leaves its memory.
  static Result<BlockMap> open(std::vector<BlockRegion> regions, std::size_t blocks);

  [[nodiscard]] std::size_t blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::size_t regions() const noexcept { return regions_.size(); }
  // Of one block, in all regions.
  [[nodiscard]] std::size_t block_bytes() const noexcept { return block_bytes_; }

  // Adds the copies between these blocks and a buffer, those of `count` regions from `first` on.
  // Runs that follow each other on both sides become one copy. On the way out of a buffer a number
  // below 0 stands for a block that is not wanted.
  // Requires: first + count <= regions().
  // Fails with: kInvalidArgument when there is no such block, or for a buffer of another length
  // than all regions of these blocks.
  Outcome plan(std::span<const std::int64_t> blocks, MutableBytes buffer, bool to_buffer,
               std::size_t first, std::size_t count, std::vector<Copy>& copies) const;

 private:
  BlockMap(std::vector<BlockRegion> regions, std::size_t blocks, std::size_t block_bytes)
      : regions_(std::move(regions)), blocks_(blocks), block_bytes_(block_bytes) {}

  std::vector<BlockRegion> regions_;
  std::size_t blocks_;
  std::size_t block_bytes_;
};

}  // namespace kvferry::mem
