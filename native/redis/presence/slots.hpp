#pragma once
// SlotSet: a set of hash slots, 2 KiB; and which slots a node of a cluster serves by its own word.
//
// The presence view goes by that word and not by the client's map: a node that hands a slot on, or
// has just taken one, says so itself, on the connection that also tells of its keys, in order.
// Source: CLUSTER NODES and CLUSTER INFO in the Redis and Valkey command references.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.hpp"
#include "redis/cluster/slot_map.hpp"

namespace kvferry::redis {

class SlotSet {
 public:
  static SlotSet all() noexcept {
    SlotSet set;
    set.words_.fill(~std::uint64_t{0});
    return set;
  }

  void add(std::size_t slot) noexcept { words_[slot / 64] |= bit(slot); }
  void remove(std::size_t slot) noexcept { words_[slot / 64] &= ~bit(slot); }
  [[nodiscard]] bool contains(std::size_t slot) const noexcept {
    return (words_[slot / 64] & bit(slot)) != 0;
  }
  [[nodiscard]] bool empty() const noexcept { return *this == SlotSet{}; }

  SlotSet& operator|=(const SlotSet& other) noexcept {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  SlotSet& operator&=(const SlotSet& other) noexcept {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
    return *this;
  }
  SlotSet& operator-=(const SlotSet& other) noexcept {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= ~other.words_[i];
    return *this;
  }
  friend SlotSet operator|(SlotSet one, const SlotSet& other) noexcept { return one |= other; }
  friend SlotSet operator&(SlotSet one, const SlotSet& other) noexcept { return one &= other; }
  friend SlotSet operator-(SlotSet one, const SlotSet& other) noexcept { return one -= other; }
  bool operator==(const SlotSet&) const = default;

  template <typename Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t rest = words_[i]; rest != 0; rest &= rest - 1) {
        visit(64 * i + static_cast<std::size_t>(std::countr_zero(rest)));
      }
    }
  }

 private:
  static constexpr std::uint64_t bit(std::size_t slot) noexcept {
    return std::uint64_t{1} << (slot % 64);
  }
  std::array<std::uint64_t, kSlotCount / 64> words_{};
};

// What CLUSTER NODES says of the node that answers: the slots that it serves alone, without those
// that are on their way. None for a replica. Fails with: kProtocol.
Result<SlotSet> parse_own_slots(std::string_view cluster_nodes);

// Whether CLUSTER INFO says that the node takes commands.
[[nodiscard]] bool cluster_is_up(std::string_view cluster_info) noexcept;

}  // namespace kvferry::redis
