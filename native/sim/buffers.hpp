#pragma once
// Buffers: the callers' memory, which knows what may still be touched.
//
// Every piece stands between guards. When its batch is finished it is overwritten, and whoever
// names it in a receive or a send after that has broken the promise of redis/batch.hpp.
// Lifetime: until clear(). Limits: take() gives nothing when the arena is full.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/bytes.hpp"

namespace kvferry::sim {

class Buffers {
 public:
  void clear(std::size_t bytes_max) {
    if (memory_.size() < bytes_max) memory_.resize(bytes_max);
    used_ = 0;
    limit_ = bytes_max;
    pieces_.clear();
  }

  // Empty when there is no room; `size` is at least one.
  MutableBytes take(std::size_t size, std::uint32_t owner) {
    const std::size_t begin = used_ + kGuard;
    if (begin + size + kGuard > limit_) return {};
    std::fill_n(memory_.begin() + static_cast<std::ptrdiff_t>(used_), kGuard, kFill);
    used_ = begin + (size + 7) / 8 * 8;
    std::fill_n(memory_.begin() + static_cast<std::ptrdiff_t>(begin + size), kGuard, kFill);
    pieces_.push_back({begin, size, owner, false});
    return MutableBytes(memory_).subspan(begin, size);
  }

  // The owner's batch is finished.
  void retire(std::uint32_t owner) noexcept {
    for (Piece& piece : pieces_) {
      if (piece.owner != owner) continue;
      piece.retired = true;
      std::ranges::fill(bytes_of(piece), kFill);
    }
  }

  [[nodiscard]] bool owns(const void* begin) const noexcept {
    const auto* byte = static_cast<const std::byte*>(begin);
    return byte >= memory_.data() && byte < memory_.data() + limit_;
  }

  // Whether memory may be handed to the network: not ours, or of a batch that is running.
  [[nodiscard]] bool lent(const void* begin) const noexcept {
    if (!owns(begin)) return true;
    const auto offset =
        static_cast<std::size_t>(static_cast<const std::byte*>(begin) - memory_.data());
    auto piece = std::ranges::upper_bound(pieces_, offset, {}, &Piece::begin);
    if (piece == pieces_.begin()) return false;
    --piece;
    return offset < piece->begin + piece->size && !piece->retired;
  }

  // Nobody has written where nobody may.
  [[nodiscard]] bool intact() const noexcept {
    return std::ranges::all_of(pieces_, [&](const Piece& piece) {
      const std::span before(memory_.data() + piece.begin - kGuard, kGuard);
      const std::span after(memory_.data() + piece.begin + piece.size, kGuard);
      const std::span own(memory_.data() + piece.begin, piece.retired ? piece.size : 0);
      return filled(before) && filled(after) && filled(own);
    });
  }

 private:
  static constexpr std::size_t kGuard = 16;
  static constexpr std::byte kFill{0xA5};
  struct Piece {
    std::size_t begin;
    std::size_t size;
    std::uint32_t owner;
    bool retired;
  };
  // All bytes are like the first, and that is right.
  static bool filled(ByteView bytes) noexcept {
    return bytes.empty() || (bytes[0] == kFill &&
                             std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
  }
  MutableBytes bytes_of(const Piece& piece) noexcept {
    return MutableBytes(memory_).subspan(piece.begin, piece.size);
  }

  std::vector<std::byte> memory_;
  std::size_t used_ = 0;
  std::size_t limit_ = 0;
  std::vector<Piece> pieces_;  // by begin
};

}  // namespace kvferry::sim
