#pragma once
// SlotMap: which node of a cluster serves which of the 16384 hash slots, at one moment.
//
// Built once from ranges and never changed, so threads may share one (shared_ptr<const SlotMap>,
// owned by the client and by whoever is looking something up). It takes 32 KiB, whatever the
// number of ranges. Two maps are equal when the same primaries and replicas serve the same slots,
// in whatever order the servers listed them.
//
// Failure: build() refuses what no cluster can mean, and more nodes than we would connect to.
// Source: Redis cluster specification, "key distribution model" and "hash tags".

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "net/address.hpp"

namespace kvferry::redis {

inline constexpr std::size_t kSlotCount = 16384;

// The slot of a key: CRC16 (XMODEM) of it, or of the first {tag} in it that is not empty.
[[nodiscard]] std::uint16_t key_slot(std::string_view key) noexcept;

struct Node {
  net::Endpoint endpoint;
  std::string zone;  // availability zone; empty where the server does not say
};

// A primary and the replicas that hold the same slots.
struct Shard {
  Node primary;
  std::vector<Node> replicas;  // sorted by endpoint, none twice
};

// Slots `first` to `last`, both included, of one primary. Comes from a server: may be anything.
struct SlotRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  Node primary;
  std::vector<Node> replicas;
};

class SlotMap {
 public:
  static constexpr std::uint16_t kNoShard = 0xffff;
  static constexpr std::size_t kShardsMax = 1024;  // what the cluster specification aims at
  static constexpr std::size_t kReplicasMax = 64;  // of one shard

  // No slot is covered.
  SlotMap() = default;

  // Ranges of one primary become one shard. Shards are numbered by their lowest slot.
  // Fails with: kProtocol (a slot beyond the last, a range that ends before it begins, a slot that
  // is served twice), kCapacity (too many shards or replicas).
  static Result<SlotMap> build(std::vector<SlotRange> ranges);

  // Index into shards(), or kNoShard: nobody serves the slot, or it is none.
  [[nodiscard]] std::uint16_t shard_of(std::size_t slot) const noexcept {
    return slot < slots_.size() ? slots_[slot] : kNoShard;
  }
  [[nodiscard]] std::span<const Shard> shards() const noexcept { return shards_; }

  // The number of slots that somebody serves; kSlotCount in a cluster that is whole.
  [[nodiscard]] std::size_t covered() const noexcept { return covered_; }

  friend bool operator==(const SlotMap& one, const SlotMap& other) noexcept;

 private:
  std::vector<std::uint16_t> slots_;  // kSlotCount of them, or none when nothing is covered
  std::vector<Shard> shards_;
  std::size_t covered_ = 0;
};

}  // namespace kvferry::redis
