#pragma once
// FileUsage: how much a directory holds, counted by all processes of the host that use it.
//
// The counters lie in a file that all of them read and write, so that together they stay below a
// limit. It is never mapped: whoever truncates it would end every process that has it mapped. Each
// change is a read and a write under a lock of the file, which is waited for a moment at most:
// without it a change may be lost. What that, a crash or others do to the counters, correct() puts
// right after a scan. Where the file is damaged, the last that was known here takes its place.
//
// Threads, processes: any.

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace kvferry::connector {

class FileUsage {
 public:
  struct Counters {
    std::uint64_t magic = 0;
    std::int64_t stored_bytes = 0;  // of files in their place
    std::int64_t stored_keys = 0;
    std::int64_t reserved_bytes = 0;  // for files that are being written
    std::int64_t scanned_at_ms = 0;   // when somebody last looked, since 1970
  };

  enum class Writers { kMany, kOne };

  // Opens `name` in `directory`, making it if need be. Where it cannot be written, this process
  // counts for itself, between scans. Without `writers` beside this one nothing is locked.
  FileUsage(int directory, const char* name, Writers writers = Writers::kMany);
  FileUsage(const FileUsage&) = delete;
  FileUsage& operator=(const FileUsage&) = delete;

  // Takes room for a file that will be written; false: `capacity` (0: none) would be exceeded.
  [[nodiscard]] bool reserve(std::int64_t bytes, std::uint64_t capacity) noexcept;
  void give_back(std::int64_t bytes) noexcept;
  // The file is in its place, where one of `replaced` bytes was (negative: none was).
  void stored(std::int64_t bytes, std::int64_t replaced) noexcept;
  void removed(std::int64_t bytes) noexcept;

  [[nodiscard]] std::int64_t bytes() const noexcept;  // stored and reserved
  [[nodiscard]] std::int64_t keys() const noexcept;
  // Nobody else is there: what is reserved is left over from a crash.
  void forget_reservations() noexcept;

  // A scan: note() before it, correct() with what it found.
  [[nodiscard]] Counters note() const noexcept;
  void correct(const Counters& before, std::int64_t bytes, std::int64_t keys,
               std::int64_t now_ms) noexcept;

 private:
  class Locked;

  const UniqueFd fd_;
  const Writers writers_;
  mutable std::mutex mutex_;
  mutable Counters known_;  // as last read or written here
};

}  // namespace kvferry::connector
