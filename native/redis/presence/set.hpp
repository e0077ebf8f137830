#pragma once
// PresenceSet: which of many keys there are, as 64-bit hashes: 8 bytes a key, at most twice that
// with the room to grow, and nothing for the name.
//
// Open addressing with linear probing, in 256 segments that grow and shrink one by one, so that no
// insertion moves more than a 256th of the keys while somebody waits for an answer.
//
// Requires: hashes are spread evenly and are not 0. Threads: one.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvferry::redis {

class PresenceSet {
 public:
  // Whether it was not there before.
  bool insert(std::uint64_t hash);
  // Whether it was there.
  bool erase(std::uint64_t hash);
  [[nodiscard]] bool contains(std::uint64_t hash) const noexcept;
  // Gives the memory back.
  void clear() noexcept;

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  struct Segment {
    std::vector<std::uint64_t> cells;  // 0: free; a power of two of them, or none
    std::size_t used = 0;

    [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept {
      return hash & (cells.size() - 1);
    }
    // The cell that has the hash, or the free one where it would go.
    [[nodiscard]] std::size_t place(std::uint64_t hash) const noexcept;
    void resize(std::size_t cell_count);
  };
  [[nodiscard]] static std::size_t segment_of(std::uint64_t hash) noexcept { return hash >> 56; }

  std::vector<Segment> segments_;  // none while the set is empty
  std::size_t size_ = 0;
};

}  // namespace kvferry::redis
