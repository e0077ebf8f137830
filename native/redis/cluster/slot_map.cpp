#include "redis/cluster/slot_map.hpp"

#include <algorithm>
#include <array>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace kvferry::redis {
namespace {

// CRC-16/XMODEM: polynomial 0x1021, start 0, nothing reflected.
constexpr std::array<std::uint16_t, 256> make_crc_table() {
  std::array<std::uint16_t, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    unsigned crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? 0x1021u : 0u);
    table[byte] = static_cast<std::uint16_t>(crc);
  }
  return table;
}
constexpr std::array<std::uint16_t, 256> kCrcTable = make_crc_table();

std::uint16_t crc16(std::string_view text) noexcept {
  unsigned crc = 0;
  for (const char c : text) {
    crc = ((crc << 8) ^ kCrcTable[((crc >> 8) ^ static_cast<unsigned char>(c)) & 0xff]) & 0xffff;
  }
  return static_cast<std::uint16_t>(crc);
}

// Orders and compares endpoints; a cluster has no Unix sockets.
auto identity(const Node& node) noexcept {
  return std::tie(node.endpoint.host, node.endpoint.port);
}
auto everything(const Node& node) noexcept {
  return std::tie(node.endpoint.host, node.endpoint.port, node.zone);
}

std::string text(const SlotRange& range) {
  return "slots " + std::to_string(range.first) + " to " + std::to_string(range.last);
}

// Sorts by endpoint and takes out what is named twice, or is the primary.
void normalize_replicas(Shard& shard) {
  std::ranges::sort(shard.replicas, {}, everything);
  const auto twice =
      std::unique(shard.replicas.begin(), shard.replicas.end(),
                  [](const Node& a, const Node& b) { return identity(a) == identity(b); });
  shard.replicas.erase(twice, shard.replicas.end());
  std::erase_if(shard.replicas,
                [&](const Node& node) { return identity(node) == identity(shard.primary); });
}

}  // namespace

std::uint16_t key_slot(std::string_view key) noexcept {
  if (const auto open = key.find('{'); open != std::string_view::npos) {
    const auto close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  return crc16(key) % kSlotCount;
}

Result<SlotMap> SlotMap::build(std::vector<SlotRange> ranges) {
  SlotMap map;
  if (ranges.empty()) return map;
  for (const SlotRange& range : ranges) {
    if (range.first < 0 || range.last < range.first || range.last >= std::int64_t{kSlotCount}) {
      return Error{Errc::kProtocol, "the cluster names " + text(range) + ", which do not exist"};
    }
  }
  std::ranges::sort(ranges, {}, &SlotRange::first);
  map.slots_.assign(kSlotCount, kNoShard);
  std::unordered_map<std::string, std::uint16_t> shard_by_primary;
  std::int64_t next = 0;  // the first slot that no range has claimed
  for (SlotRange& range : ranges) {
    if (range.first < next) {
      return Error{Errc::kProtocol, "the cluster serves slot " + std::to_string(range.first) +
                                        " from two primaries"};
    }
    next = range.last + 1;
    const auto number = static_cast<std::uint16_t>(map.shards_.size());
    const auto [at, is_new] = shard_by_primary.try_emplace(range.primary.endpoint.text(), number);
    if (is_new) {
      if (map.shards_.size() == kShardsMax) {
        return Error{Errc::kCapacity,
                     "the cluster has more than " + std::to_string(kShardsMax) + " primaries"};
      }
      map.shards_.push_back({.primary = std::move(range.primary), .replicas = {}});
    }
    Shard& shard = map.shards_[at->second];
    std::ranges::move(range.replicas, std::back_inserter(shard.replicas));
    normalize_replicas(shard);
    if (shard.replicas.size() > kReplicasMax) {
      return Error{Errc::kCapacity, shard.primary.endpoint.text() + " has more than " +
                                        std::to_string(kReplicasMax) + " replicas"};
    }
    std::fill(map.slots_.begin() + range.first, map.slots_.begin() + next, at->second);
    map.covered_ += static_cast<std::size_t>(next - range.first);
  }
  return map;
}

// Both are in normal form: shards by lowest slot, replicas by endpoint.
bool operator==(const SlotMap& one, const SlotMap& other) noexcept {
  const auto same_node = [](const Node& a, const Node& b) {
    return everything(a) == everything(b);
  };
  const auto same_shard = [&](const Shard& a, const Shard& b) {
    return same_node(a.primary, b.primary) && std::ranges::equal(a.replicas, b.replicas, same_node);
  };
  return one.slots_ == other.slots_ && std::ranges::equal(one.shards_, other.shards_, same_shard);
}

}  // namespace kvferry::redis
