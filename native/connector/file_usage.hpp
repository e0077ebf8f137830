#pragma once
// FileUsage: how much a directory holds, counted by all processes of the host that use it.
//
// The counters lie in a file that all of them read and write, so that together they stay below a
// limit. It is never mapped: whoever truncates it would end every process that has it mapped. Each
// change is one read and one write of all of it, under a lock of the file that is waited for a
// moment at most: without it a change may be lost. What that, a crash or others do to the counters,
// correct() puts right after a scan. What is reserved is counted for each owner, so that forgetting
// a dead one gives back what it had, no matter between which two steps it died and how often that
// is done. Where the file is damaged, the last that was known here takes its place.
//
// Threads, processes: any.

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace kvferry::connector {

class FileUsage {
 public:
  // A process that uses the directory: any number but 0.
  using Owner = std::uint64_t;

  struct Counters {
    std::int64_t stored_bytes = 0;  // of files in their place
    std::int64_t stored_keys = 0;
    std::int64_t scanned_at_ms = 0;  // when somebody last looked, since 1970
  };

  // Opens `name` in `directory`, making it if need be. Where it cannot be written, this process
  // counts for itself, between scans.
  FileUsage(int directory, const char* name, Owner owner);
  FileUsage(const FileUsage&) = delete;
  FileUsage& operator=(const FileUsage&) = delete;

  // Whether the file is still where others look for it.
  [[nodiscard]] bool in_place() const noexcept;
  // Takes room for a file that will be written; false: `capacity` (0: none) would be exceeded.
  [[nodiscard]] bool reserve(std::int64_t bytes, std::uint64_t capacity) noexcept;
  void give_back(std::int64_t bytes) noexcept;
  // The file is in its place, where one of `replaced` bytes was (negative: none was).
  void stored(std::int64_t bytes, std::int64_t replaced) noexcept;
  void removed(std::int64_t bytes) noexcept;

  [[nodiscard]] std::int64_t bytes() const noexcept;  // stored and reserved
  [[nodiscard]] std::int64_t keys() const noexcept;
  // An owner is no more, and nothing is being written for it.
  void forget(Owner owner) noexcept;
  // Nobody else is there: what others have reserved is left over from a crash.
  void forget_others() noexcept;

  // A scan: note() before it, correct() with what it found.
  [[nodiscard]] Counters note() const noexcept;
  void correct(const Counters& before, std::int64_t bytes, std::int64_t keys,
               std::int64_t now_ms) noexcept;

 private:
  class Locked;

  // What an owner has reserved for files that it is writing.
  struct Reserved {
    Owner owner = 0;  // 0: nobody's
    std::int64_t bytes = 0;
  };
  // Beyond so many owners the others' reservations are not counted.
  static constexpr std::size_t kOwnersMax = 254;
  struct Layout {
    std::uint64_t magic = 0;
    Counters counters;
    std::array<Reserved, kOwnersMax> reserved;
  };
  static_assert(sizeof(Layout) == 4096);  // one page of a file: a kill does not divide its write

  const UniqueFd fd_;
  const Owner owner_;
  mutable std::mutex mutex_;
  mutable Layout known_;  // as last read or written here
};

}  // namespace kvferry::connector
