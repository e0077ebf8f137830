#pragma once
// Directory: which instance holds which chunks, by what each of them says of itself. A hint: the
// instance that is named decides.
//
// A seat is what one instance holds of one identity. In the index it has a slot, a bit in the sets
// of holders, so a lookup takes one probe for each hash, however many hold it. A snapshot is
// gathered under another slot, which lookups do not see until it takes the place of the first one
// in one step; what is in a slot that nobody uses any more is swept out part by part, while lookups
// go on. So is what a dead instance held.
//
// A seat's number is never taken again, so what comes late for one that was dropped harms nobody.
// Failure: an unknown seat holds nothing, and changes of it are not applied. A lookup waits for
// others at most while one of the 1024 parts is changed by one hash, grows, or is swept.
// Threads: any.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "cache/hashes.hpp"
#include "directory/segment.hpp"

namespace kvferry::directory {

class Directory {
 public:
  using Seat = std::uint32_t;

  struct Held {
    Seat seat = 0;
    std::size_t chunks = 0;
  };
  struct Stats {
    std::size_t seats = 0;
    std::size_t entries = 0;  // what a snapshot has gathered so far is not among them
    std::size_t memory_bytes = 0;
  };

  Directory();
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // A seat that holds nothing. Fails with: kInvalidArgument when all slots are taken; those of
  // snapshots count.
  Result<Seat> open();
  // It holds nothing any more. False: there is none.
  bool drop(Seat seat);

  // The instance has these, and has these not: in this order. False: there is no such seat.
  bool update(Seat seat, cache::Hashes added, cache::Hashes removed);

  // A snapshot: all that the instance holds, in pieces. Lookups see none of it before `finish`,
  // and then nothing else. One that was begun before and not finished is forgotten.
  // False: there is no such seat, no snapshot was begun, or there is no slot for one.
  bool begin(Seat seat);
  bool fill(Seat seat, cache::Hashes part);
  bool finish(Seat seat);

  // The seats that hold leading chunks, with how many; the longest first, then by number.
  [[nodiscard]] std::vector<Held> lookup(cache::Hashes hashes) const;
  // Of each hash whether the seat holds it: 1 or 0. Requires: held.size() >= hashes.size().
  void states(Seat seat, cache::Hashes hashes, std::span<std::uint8_t> held) const;
  [[nodiscard]] std::size_t size(Seat seat) const;
  [[nodiscard]] Stats stats() const;

 private:
  static constexpr std::size_t kParts = 1024;

  struct Part {
    mutable std::mutex mutex;
    Segment segment;  // guarded by mutex
  };
  struct Member {
    std::mutex changing;  // held by whoever changes what the seat holds, as long as that takes
    Slot slot = 0;
    std::optional<Slot> next;  // of a snapshot
    bool dropped = false;
  };
  // Owned by the list of seats, and by changes that were under way when it was dropped from there.
  using Shared = std::shared_ptr<Member>;

  [[nodiscard]] Part& part(std::uint64_t mixed) const { return parts_[mixed >> 54]; }
  [[nodiscard]] Shared at(Seat seat) const;
  [[nodiscard]] std::optional<Slot> take_slot();
  void add(Slot slot, cache::Hashes hashes);
  void remove(Slot slot, cache::Hashes hashes);
  void sweep(Slot slot);  // and then it may be taken again

  std::unique_ptr<Part[]> parts_;
  std::unique_ptr<std::atomic<std::size_t>[]> sizes_;  // by slot; relaxed: a count alone

  // The seats and what follows. Lookups hold it shared: what they see as the slots in use stays so
  // until they end. Others hold it for a moment.
  mutable std::shared_mutex seats_mutex_;
  std::unordered_map<Seat, Shared> seats_;
  Seat next_seat_ = 0;
  std::vector<std::optional<Seat>> seat_of_slot_;  // none: not seen by lookups
  std::vector<std::uint64_t> seen_;                // the mask of those that are
  std::vector<bool> taken_;
};

}  // namespace kvferry::directory
