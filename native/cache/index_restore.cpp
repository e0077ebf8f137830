// How the chunks of an index are written down, and taken over by the index of another process.

#include <algorithm>
#include <functional>

#include "cache/index.hpp"

namespace kvferry::cache {

// The ready chunks, the one that would go last in front. Each is in one queue of the policy, and
// all queues use the same links: so the youngest of each queue has nobody younger, whatever the
// policy.
std::vector<std::uint32_t> Index::by_age() const {
  std::vector<std::uint32_t> youngest;
  for (std::uint32_t slot = 0; slot < entries_.touched(); ++slot) {
    const Entry& entry = entries_[slot];
    if (entry.state == State::kReady && entry.order.younger == kNone) youngest.push_back(slot);
  }
  // Queues of chunks on trial have the lower marks.
  std::ranges::stable_sort(youngest, std::greater{},
                           [this](std::uint32_t slot) { return entries_[slot].mark; });
  std::vector<std::uint32_t> slots;
  slots.reserve(stats_.ready);
  for (std::uint32_t slot : youngest) {
    for (; slot != kNone; slot = entries_[slot].order.older) slots.push_back(slot);
  }
  return slots;
}

std::vector<Resident> Index::residents() const {
  std::vector<Resident> out;
  out.reserve(stats_.ready);
  std::vector<std::uint32_t> places(entries_.touched(), kNone);  // in `out`, by slot
  std::vector<std::uint32_t> branch;
  for (std::uint32_t slot : by_age()) {
    branch.clear();
    while (slot != kNone && places[slot] == kNone && entries_[slot].state == State::kReady) {
      branch.push_back(slot);
      slot = entries_.parent_of(slot);
    }
    std::uint32_t parent = slot == kNone ? kNone : places[slot];
    for (std::size_t i = branch.size(); i-- > 0;) {
      const Entry& entry = entries_[branch[i]];
      out.push_back({entry.hash, parent, entry.page});
      parent = places[branch[i]] = static_cast<std::uint32_t>(out.size() - 1);
    }
  }
  return out;
}

std::uint32_t Index::ready_from(std::uint32_t from, std::size_t count,
                                std::vector<ChunkHash>& hashes) const {
  const std::uint32_t touched = entries_.touched();
  for (; count > 0 && from < touched; ++from, --count) {
    const Entry& entry = entries_[from];
    if (entry.state == State::kReady) hashes.push_back(entry.hash);
  }
  return from < touched ? from : 0;
}

std::size_t Index::restore(std::span<const Resident> residents) {
  std::vector<std::uint32_t> slots(residents.size(), kNone);
  std::vector<std::uint32_t> inserted;
  for (std::size_t i = 0; i < residents.size(); ++i) {
    const auto& [hash, parent, page] = residents[i];
    if (page == 0 && pages_ != nullptr) continue;
    slots[i] = find(hash);
    if (slots[i] != kNone || entries_.resident() == capacity()) {
      if (pages_ != nullptr) pages_->give_back(page);
      continue;
    }
    const std::uint8_t mark = policy_->prepare(hash);
    slots[i] = insert(hash, leaf_first_ && parent < i ? slots[parent] : kNone);
    entries_[slots[i]].mark = mark;
    entries_[slots[i]].page = page;
    inserted.push_back(slots[i]);
  }
  for (std::size_t i = inserted.size(); i-- > 0;) make_ready(inserted[i]);
  return inserted.size();
}

}  // namespace kvferry::cache
