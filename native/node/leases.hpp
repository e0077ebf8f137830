#pragma once
// Leases: what one connection reads by itself from the node's memory (one-sided), and until when.
//
// The pages of a lease are neither evicted nor written to before it ends: when it is released, when
// its time is over, or with its connection, whichever is first. Who reads has to know the time: one
// that reads on after the end finds bytes of something else, which the frame's checksum tells.
//
// Threads: one; Agent any.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "node/in_flight.hpp"
#include "node/values.hpp"

namespace kvferry::node {

struct LeaseLimits {
  std::size_t count_max = 64;  // of one connection
  std::size_t bytes_max = 1024 * kMiB;
  UnixMs time_ms_max = 10'000;
};

// What a reader needs to reach the memory of this process, as NIXL says it; none: it cannot.
class Agent {
 public:
  struct Told {
    std::uint64_t incarnation = 0;  // another one: the metadata are to be read anew
    std::string metadata;
  };

  void set(std::uint64_t incarnation, std::string metadata) {
    const std::lock_guard lock(mutex_);
    told_ = {incarnation, std::move(metadata)};
  }
  [[nodiscard]] std::optional<Told> told() const {
    const std::lock_guard lock(mutex_);
    return told_.metadata.empty() ? std::nullopt : std::optional(told_);
  }
  // 0: none.
  [[nodiscard]] std::uint64_t incarnation() const {
    const std::lock_guard lock(mutex_);
    return told_.incarnation;
  }

 private:
  mutable std::mutex mutex_;
  Told told_;
};

class Leases {
 public:
  explicit Leases(const LeaseLimits& limits) noexcept : limits_(limits) {}

  // Why so many bytes more cannot be leased; empty: they can.
  [[nodiscard]] std::string_view refusal(std::size_t bytes) const noexcept;
  // Its number, from 1 on. Requires: no refusal().
  std::uint64_t add(std::vector<ValuePtr> values, std::size_t bytes, InFlight::Ticket ticket,
                    UnixMs until);
  // Whether there was such a one.
  bool release(std::uint64_t id);
  // Ends those whose time is over; how many.
  std::size_t expire(UnixMs now);
  void clear() noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  struct Lease {
    std::vector<ValuePtr> values;
    std::size_t bytes = 0;
    InFlight::Ticket ticket;
    UnixMs until = 0;
  };

  const LeaseLimits& limits_;
  std::map<std::uint64_t, Lease> leases_;
  std::size_t bytes_ = 0;
  std::uint64_t next_ = 1;
};

}  // namespace kvferry::node
