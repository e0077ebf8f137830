#pragma once
// Holders: who holds which chunks until when; leases of readers and reservations of writers.
//
// A machine: time is an argument. A holder is in force until its deadline, then expired: its claim
// on chunks is over, but it may still touch the memory, so it stays known until it is erased.
//
// Threads: one at a time.

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "cache/entries.hpp"

namespace kvferry::cache {

struct Holder {
  enum class Kind : std::uint8_t { kLease, kReservation };
  Holder(Kind kind_, Nanos deadline_) : kind(kind_), deadline(deadline_) {}

  Kind kind;
  bool expired = false;
  Nanos deadline;
  std::vector<ChunkRef> refs;
  std::vector<std::uint64_t> pages;  // one for each chunk; empty without a pool
};

class Holders {
 public:
  // Its id, never 0 and never given twice.
  std::uint64_t add(Holder holder) {
    const std::uint64_t id = ++last_id_;
    deadlines_.emplace(holder.deadline, id);
    ++in_force_[holder.kind == Holder::Kind::kLease ? 0 : 1];
    holders_.emplace(id, std::move(holder));
    return id;
  }

  // In force or expired. Valid until the holder is erased.
  [[nodiscard]] Holder* find(std::uint64_t id) {
    const auto at = holders_.find(id);
    return at == holders_.end() ? nullptr : &at->second;
  }

  // False for one that is expired or unknown.
  bool extend(std::uint64_t id, Nanos deadline) {
    Holder* holder = find(id);
    if (holder == nullptr || holder->expired) return false;
    deadlines_.erase({holder->deadline, id});
    holder->deadline = deadline;
    deadlines_.emplace(deadline, id);
    return true;
  }

  // The one that expired first of those whose deadline is not after `now`; each comes once.
  std::optional<std::uint64_t> expire_next(Nanos now) {
    if (deadlines_.empty() || deadlines_.begin()->first > now) return std::nullopt;
    const std::uint64_t id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    Holder& holder = holders_.find(id)->second;
    holder.expired = true;
    --in_force_[holder.kind == Holder::Kind::kLease ? 0 : 1];
    return id;
  }

  // Requires: the id is known.
  Holder erase(std::uint64_t id) {
    const auto at = holders_.find(id);
    Holder holder = std::move(at->second);
    holders_.erase(at);
    if (!holder.expired) {
      deadlines_.erase({holder.deadline, id});
      --in_force_[holder.kind == Holder::Kind::kLease ? 0 : 1];
    }
    return holder;
  }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [id, holder] : holders_) visit(holder);
  }

  [[nodiscard]] std::size_t leases() const noexcept { return in_force_[0]; }
  [[nodiscard]] std::size_t reservations() const noexcept { return in_force_[1]; }
  [[nodiscard]] std::size_t expired() const noexcept { return holders_.size() - deadlines_.size(); }

 private:
  std::unordered_map<std::uint64_t, Holder> holders_;
  std::set<std::pair<Nanos, std::uint64_t>> deadlines_;  // of those in force
  std::size_t in_force_[2] = {0, 0};
  std::uint64_t last_id_ = 0;
};

}  // namespace kvferry::cache
