#include "mem/block_map.hpp"

#include <limits>
#include <string>
#include <utility>

namespace kvferry::mem {
namespace {

Error refused(std::string text) { return {Errc::kInvalidArgument, std::move(text)}; }

// Whether `count` things of `size` bytes, `stride` apart, fit into `room`; how far they reach.
bool reach(std::size_t count, std::size_t stride, std::size_t size, std::size_t room,
           std::size_t& bytes) {
  if (count == 0 || size == 0 || size > room) return false;
  if (count > 1 && (stride < size || (room - size) / stride < count - 1)) return false;
  bytes = (count - 1) * stride + size;
  return true;
}

void add(std::vector<Copy>& copies, MutableBytes to, ByteView from) {
  if (!copies.empty()) {
    Copy& last = copies.back();
    if (last.to.data() + last.to.size() == to.data() &&
        last.from.data() + last.from.size() == from.data()) {
      last = {{last.to.data(), last.to.size() + to.size()},
              {last.from.data(), last.from.size() + from.size()}};
      return;
    }
  }
  copies.push_back({to, from});
}

}  // namespace

Result<BlockMap> BlockMap::open(std::vector<BlockRegion> regions, std::size_t blocks) {
  if (regions.empty() || blocks == 0) return refused("a cache needs a region and a block");
  std::size_t block_bytes = 0;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const BlockRegion& region = regions[i];
    const std::size_t size = region.memory.size();
    std::size_t rows_bytes = 0;
    std::size_t all_bytes = 0;
    // Blocks may be interleaved row by row, so only rows are kept apart here.
    const bool fits =
        region.offset_bytes <= size &&
        reach(region.rows, region.row_stride_bytes, region.row_bytes, size, rows_bytes) &&
        (blocks == 1 || region.block_stride_bytes >= region.row_bytes) &&
        (blocks == 1 ||
         (std::numeric_limits<std::size_t>::max() - rows_bytes) / region.block_stride_bytes >=
             blocks - 1);
    if (fits) all_bytes = (blocks - 1) * region.block_stride_bytes + rows_bytes;
    if (!fits || all_bytes > size - region.offset_bytes) {
      return refused("region " + std::to_string(i) + " does not lie in its memory of " +
                     std::to_string(size) + " bytes");
    }
    block_bytes += region.rows * region.row_bytes;
  }
  return BlockMap(std::move(regions), blocks, block_bytes);
}

Outcome BlockMap::plan(std::span<const std::int64_t> blocks, MutableBytes buffer, bool to_buffer,
                       std::size_t first, std::size_t count, std::vector<Copy>& copies) const {
  for (const std::int64_t block : blocks) {
    const bool none = block < 0 && !to_buffer;
    if (!none && (block < 0 || static_cast<std::size_t>(block) >= blocks_)) {
      return refused("there is no block " + std::to_string(block) + "; there are " +
                     std::to_string(blocks_));
    }
  }
  if (buffer.size() != blocks.size() * block_bytes_) {
    return refused("a buffer has " + std::to_string(buffer.size()) + " bytes, " +
                   std::to_string(blocks.size()) + " blocks have " +
                   std::to_string(blocks.size() * block_bytes_));
  }
  std::size_t at = 0;
  for (std::size_t i = 0; i < first + count; ++i) {
    const BlockRegion& region = regions_[i];
    if (i < first) {
      at += blocks.size() * region.rows * region.row_bytes;
      continue;
    }
    for (const std::int64_t block : blocks) {
      if (block < 0) {
        at += region.rows * region.row_bytes;
        continue;
      }
      std::size_t from =
          region.offset_bytes + static_cast<std::size_t>(block) * region.block_stride_bytes;
      for (std::size_t row = 0; row < region.rows; ++row) {
        const MutableBytes there = region.memory.subspan(from, region.row_bytes);
        const MutableBytes here = buffer.subspan(at, region.row_bytes);
        if (to_buffer) {
          add(copies, here, there);
        } else {
          add(copies, there, here);
        }
        at += region.row_bytes;
        from += region.row_stride_bytes;
      }
    }
  }
  return Done{};
}

}  // namespace kvferry::mem
