#pragma once
// The keys of a schedule: few, so that batches meet. Even ones hold raw values, odd ones framed
// values. An entry is what a server stores under one name: a key, or the second stripe of one.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "redis/cluster/slot_map.hpp"

namespace kvferry::sim {

inline constexpr std::size_t kKeys = 12;
inline constexpr std::size_t kEntries = 2 * kKeys;  // key * 2 + stripe
// Parts of the slot space that move between nodes as one.
inline constexpr std::size_t kRegions = 4;
inline constexpr std::size_t kSlotsPerRegion = redis::kSlotCount / kRegions;

inline constexpr bool is_framed(std::size_t key) noexcept { return key % 2 == 1; }

inline std::string key_text(std::size_t key) {
  return std::string(1, is_framed(key) ? 'f' : 'r').append(std::to_string(key));
}

// The entry that a server's argument names.
inline std::optional<std::size_t> entry_of(std::string_view text) noexcept {
  std::size_t key = 0;
  std::size_t at = 1;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    key = key * 10 + static_cast<std::size_t>(text[at] - '0');
  }
  if (at == 1 || key >= kKeys) return std::nullopt;
  if (at == text.size()) return key * 2;
  return text.substr(at) == "#1" ? std::optional(key * 2 + 1) : std::nullopt;
}

inline std::uint16_t slot_of(std::size_t entry) noexcept {
  static const auto slots = [] {
    std::array<std::uint16_t, kEntries> all{};
    for (std::size_t each = 0; each < kEntries; ++each) {
      all[each] = redis::key_slot(key_text(each / 2).append(each % 2 == 1 ? "#1" : ""));
    }
    return all;
  }();
  return slots[entry];
}
inline std::size_t region_of(std::size_t entry) noexcept {
  return slot_of(entry) / kSlotsPerRegion;
}

}  // namespace kvferry::sim
