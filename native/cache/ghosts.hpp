#pragma once
// Ghosts: fingerprints of chunks that were evicted, in up to two queues; what ARC and S3-FIFO learn
// from. A fingerprint has 64 bits: once in a long time a stranger is taken for a ghost, which costs
// a little order and nothing else.
//
// Nothing is allocated after construction. One thread at a time.

#include <cstddef>
#include <cstdint>

#include "cache/hashes.hpp"
#include "cache/slot_list.hpp"
#include "cache/slot_table.hpp"
#include "cache/zeroed.hpp"

namespace kvferry::cache {

class Ghosts {
 public:
  static constexpr int kNowhere = -1;

  explicit Ghosts(std::size_t capacity)
      : nodes_(capacity), table_(capacity), queues_{Queue(nodes_), Queue(nodes_)} {}

  // The queue that holds the chunk's ghost, which is gone with this call; or kNowhere.
  int take(const ChunkHash& hash) noexcept {
    const std::uint32_t node = find(hash.mixed());
    if (node == kNone) return kNowhere;
    const int queue = nodes_[node].queue;
    remove(node);
    return queue;
  }

  // Enters as the youngest. When there is no place, the oldest of this queue makes one, or else
  // the oldest of the other.
  void push(int queue, const ChunkHash& hash) noexcept {
    const std::uint64_t print = hash.mixed();
    if (const std::uint32_t node = find(print); node != kNone) remove(node);
    if (free_ == kNone && used_ == nodes_.size()) {
      drop_oldest(queues_[queue].size() > 0 ? queue : 1 - queue);
    }
    std::uint32_t node = free_;
    if (node == kNone) {
      node = used_++;
    } else {
      free_ = nodes_[node].links.older;
    }
    nodes_[node].print = print;
    nodes_[node].queue = queue;
    queues_[queue].push(node);
    table_.insert(print, node);
  }

  // Requires: size(queue) > 0.
  void drop_oldest(int queue) noexcept { remove(queues_[queue].oldest()); }

  [[nodiscard]] std::size_t size(int queue) const noexcept { return queues_[queue].size(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept {
    return nodes_.size_bytes() + table_.size_bytes();
  }

 private:
  struct Node {
    std::uint64_t print;
    Links links;  // `older` also chains the free ones
    int queue;
  };
  using Queue = SlotList<Node, &Node::links>;

  [[nodiscard]] std::uint32_t find(std::uint64_t print) const noexcept {
    return table_.find(print, [&](std::uint32_t node) { return nodes_[node].print == print; });
  }
  void remove(std::uint32_t node) noexcept {
    queues_[nodes_[node].queue].remove(node);
    table_.erase(nodes_[node].print, node);
    nodes_[node].links.older = free_;
    free_ = node;
  }

  Zeroed<Node> nodes_;
  SlotTable table_;
  Queue queues_[2];
  std::uint32_t free_ = kNone;
  std::uint32_t used_ = 0;
};

}  // namespace kvferry::cache
