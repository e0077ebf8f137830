#include "directory/directory.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

namespace kvferry::directory {
namespace {

using cache::ChunkHash;
using cache::Hashes;

// So many cells are asked for before the first of them is needed.
constexpr std::size_t kAhead = 8;

void set(std::vector<std::uint64_t>& mask, Slot slot, bool value) {
  const std::uint64_t bit = std::uint64_t{1} << slot % 64;
  mask[slot / 64] = value ? mask[slot / 64] | bit : mask[slot / 64] & ~bit;
}

}  // namespace

Directory::Directory()
    : parts_(std::make_unique<Part[]>(kParts)),
      sizes_(std::make_unique<std::atomic<std::size_t>[]>(kSlotsMax)) {}

Directory::~Directory() = default;

Directory::Shared Directory::at(Seat seat) const {
  const std::shared_lock lock(seats_mutex_);
  const auto found = seats_.find(seat);
  return found != seats_.end() ? found->second : nullptr;
}

// Requires: seats_mutex_, alone.
std::optional<Slot> Directory::take_slot() {
  auto place = std::find(taken_.begin(), taken_.end(), false);
  if (place == taken_.end()) {
    if (taken_.size() == kSlotsMax) return std::nullopt;
    place = taken_.insert(taken_.end(), false);
    seat_of_slot_.emplace_back();
    seen_.resize((taken_.size() + 63) / 64);
  }
  *place = true;
  return static_cast<Slot>(place - taken_.begin());
}

Result<Directory::Seat> Directory::open() {
  auto fresh = std::make_shared<Member>();
  const std::lock_guard lock(seats_mutex_);
  const auto slot = take_slot();
  if (!slot) return Error{Errc::kInvalidArgument, "the directory has no room for one more"};
  fresh->slot = *slot;
  const Seat seat = next_seat_++;
  seats_.emplace(seat, std::move(fresh));
  seat_of_slot_[*slot] = seat;
  set(seen_, *slot, true);
  return seat;
}

bool Directory::drop(Seat seat) {
  Shared gone;
  {
    const std::lock_guard lock(seats_mutex_);
    auto node = seats_.extract(seat);
    if (node.empty()) return false;
    gone = std::move(node.mapped());
    for (Slot slot = 0; slot < seat_of_slot_.size(); ++slot) {
      if (seat_of_slot_[slot] != seat) continue;
      seat_of_slot_[slot].reset();
      set(seen_, slot, false);
    }
  }
  const std::lock_guard changing(gone->changing);
  gone->dropped = true;
  sweep(gone->slot);
  if (gone->next) sweep(*gone->next);
  return true;
}

void Directory::sweep(Slot slot) {
  for (std::size_t i = 0; i < kParts; ++i) {
    if (sizes_[slot].load(std::memory_order_relaxed) == 0) break;
    const std::lock_guard lock(parts_[i].mutex);
    sizes_[slot].fetch_sub(parts_[i].segment.forget(slot), std::memory_order_relaxed);
  }
  const std::lock_guard lock(seats_mutex_);
  taken_[slot] = false;
}

void Directory::add(Slot slot, Hashes hashes) {
  std::size_t fresh = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::uint64_t mixed = hashes[i].mixed();
    Part& target = part(mixed);
    const std::lock_guard lock(target.mutex);
    fresh += target.segment.add(hashes[i], mixed, slot);
  }
  sizes_[slot].fetch_add(fresh, std::memory_order_relaxed);
}

void Directory::remove(Slot slot, Hashes hashes) {
  std::size_t gone = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::uint64_t mixed = hashes[i].mixed();
    Part& target = part(mixed);
    const std::lock_guard lock(target.mutex);
    gone += target.segment.remove(hashes[i], mixed, slot);
  }
  sizes_[slot].fetch_sub(gone, std::memory_order_relaxed);
}

bool Directory::update(Seat seat, Hashes added, Hashes removed) {
  const Shared member = at(seat);
  if (member == nullptr) return false;
  const std::lock_guard changing(member->changing);
  if (member->dropped) return false;
  add(member->slot, added);
  remove(member->slot, removed);
  return true;
}

bool Directory::begin(Seat seat) {
  const Shared member = at(seat);
  if (member == nullptr) return false;
  const std::lock_guard changing(member->changing);
  if (member->dropped) return false;
  if (const auto before = std::exchange(member->next, std::nullopt)) sweep(*before);
  const std::lock_guard lock(seats_mutex_);
  member->next = take_slot();
  return member->next.has_value();
}

bool Directory::fill(Seat seat, Hashes part) {
  const Shared member = at(seat);
  if (member == nullptr) return false;
  const std::lock_guard changing(member->changing);
  if (member->dropped || !member->next) return false;
  add(*member->next, part);
  return true;
}

bool Directory::finish(Seat seat) {
  const Shared member = at(seat);
  if (member == nullptr) return false;
  const std::lock_guard changing(member->changing);
  if (member->dropped || !member->next) return false;
  const Slot before = std::exchange(member->slot, *std::exchange(member->next, std::nullopt));
  {
    const std::lock_guard lock(seats_mutex_);
    const auto seen = std::exchange(seat_of_slot_[before], std::nullopt);
    set(seen_, before, false);
    if (seen) {  // else a drop came before us, and waits for us to sweep
      seat_of_slot_[member->slot] = seen;
      set(seen_, member->slot, true);
    }
  }
  sweep(before);
  return true;
}

std::vector<Directory::Held> Directory::lookup(Hashes hashes) const {
  std::vector<Held> found;
  std::array<std::uint64_t, kSlotsMax / 64> bits;
  std::array<std::uint64_t, kSlotsMax / 64> before;
  const std::shared_lock seats(seats_mutex_);
  const Mask mask = Mask(bits).first(seen_.size());
  std::ranges::copy(seen_, mask.begin());
  const auto collect = [&](std::size_t word, std::uint64_t rest, std::size_t chunks) {
    for (; rest != 0; rest &= rest - 1) {
      const std::size_t slot = 64 * word + static_cast<std::size_t>(std::countr_zero(rest));
      found.push_back({*seat_of_slot_[slot], chunks});
    }
  };
  bool any = true;
  std::size_t i = 0;
  std::size_t asked = 0;
  for (; i < hashes.size() && any; ++i) {
    for (const std::size_t until = std::min(hashes.size(), i + kAhead); asked < until; ++asked) {
      __builtin_prefetch(&part(hashes[asked].mixed()));
    }
    std::ranges::copy(mask, before.begin());
    const std::uint64_t mixed = hashes[i].mixed();
    {
      const Part& target = part(mixed);
      const std::lock_guard lock(target.mutex);
      target.segment.keep(hashes[i], mixed, mask);
    }
    any = false;
    for (std::size_t word = 0; word < mask.size(); ++word) {
      any = any || mask[word] != 0;
      if (i > 0) collect(word, before[word] & ~mask[word], i);
    }
  }
  for (std::size_t word = 0; i > 0 && word < mask.size(); ++word) collect(word, mask[word], i);
  std::ranges::sort(found, [](const Held& one, const Held& other) {
    return one.chunks != other.chunks ? one.chunks > other.chunks : one.seat < other.seat;
  });
  return found;
}

void Directory::states(Seat seat, Hashes hashes, std::span<std::uint8_t> held) const {
  const Shared member = at(seat);
  std::fill_n(held.begin(), hashes.size(), std::uint8_t{0});
  if (member == nullptr) return;
  const std::lock_guard changing(member->changing);
  for (std::size_t i = 0; i < hashes.size() && !member->dropped; ++i) {
    const std::uint64_t mixed = hashes[i].mixed();
    const Part& target = part(mixed);
    const std::lock_guard lock(target.mutex);
    held[i] = target.segment.holds(hashes[i], mixed, member->slot) ? 1 : 0;
  }
}

std::size_t Directory::size(Seat seat) const {
  const std::shared_lock lock(seats_mutex_);
  for (Slot slot = 0; slot < seat_of_slot_.size(); ++slot) {
    if (seat_of_slot_[slot] == seat) return sizes_[slot].load(std::memory_order_relaxed);
  }
  return 0;
}

Directory::Stats Directory::stats() const {
  Stats stats;
  {
    const std::shared_lock lock(seats_mutex_);
    for (Slot slot = 0; slot < seat_of_slot_.size(); ++slot) {
      if (!seat_of_slot_[slot]) continue;
      ++stats.seats;
      stats.entries += sizes_[slot].load(std::memory_order_relaxed);
    }
  }
  stats.memory_bytes = kSlotsMax * sizeof sizes_[0] + kParts * (sizeof(Part) - sizeof(Segment));
  for (std::size_t i = 0; i < kParts; ++i) {
    const std::lock_guard lock(parts_[i].mutex);
    stats.memory_bytes += parts_[i].segment.memory_bytes();
  }
  return stats;
}

}  // namespace kvferry::directory
