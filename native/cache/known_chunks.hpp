#pragma once
// KnownChunks: which chunks a store was heard to have. Bounded: the oldest are forgotten first.
//
// Every call takes the same time however many it has known. Threads: one at a time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/hashes.hpp"
#include "cache/slot_list.hpp"
#include "cache/slot_table.hpp"
#include "cache/zeroed.hpp"

namespace kvferry::cache {

class KnownChunks {
 public:
  // Requires: capacity >= 1.
  explicit KnownChunks(std::uint32_t capacity);
  KnownChunks(const KnownChunks&) = delete;
  KnownChunks& operator=(const KnownChunks&) = delete;

  [[nodiscard]] bool contains(const ChunkHash& hash) const { return find(hash) != kNone; }
  [[nodiscard]] std::size_t size() const noexcept { return by_age_.size(); }

  // The store has it. One that is known already does not become younger.
  void add(const ChunkHash& hash);
  // The store has it not.
  void discard(const ChunkHash& hash);

 private:
  struct Node {
    ChunkHash hash;
    Links links;
  };

  [[nodiscard]] std::uint32_t find(const ChunkHash& hash) const;
  void remove(std::uint32_t slot);

  Zeroed<Node> nodes_;
  SlotTable table_;
  SlotList<Node, &Node::links> by_age_;
  std::vector<std::uint32_t> free_;
  std::uint32_t unused_ = 0;  // the first slot that was never taken
};

}  // namespace kvferry::cache
