#pragma once
// FileUsage: how much a directory holds, counted by all processes of the host that use it.
//
// The counters lie in a file that all of them map, so that together they stay below a limit. What a
// crash leaves wrong, and what others do to the directory, correct() puts right after a scan.
// Where the file system has no shared mappings, each process counts for itself, between scans.
//
// Threads, processes: any; every counter is atomic on its own.

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.hpp"

namespace kvferry::connector {

class FileUsage {
 public:
  struct Counters {
    std::uint64_t magic;
    std::int64_t stored_bytes;  // of files in their place
    std::int64_t stored_keys;
    std::int64_t reserved_bytes;  // for files that are being written
    std::int64_t scanned_at_ms;   // when somebody last looked, since 1970
  };

  // Maps `name` in `directory`, making it if need be.
  FileUsage(int directory, const char* name);
  ~FileUsage();
  FileUsage(const FileUsage&) = delete;
  FileUsage& operator=(const FileUsage&) = delete;

  // Takes room for a file that will be written; false: `capacity` (0: none) would be exceeded.
  [[nodiscard]] bool reserve(std::int64_t bytes, std::uint64_t capacity) noexcept;
  void give_back(std::int64_t bytes) noexcept { add(counters_->reserved_bytes, -bytes); }
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
  static void add(std::int64_t& counter, std::int64_t delta) noexcept {
    std::atomic_ref(counter).fetch_add(delta, std::memory_order_relaxed);
  }
  static std::int64_t load(std::int64_t& counter) noexcept {
    return std::atomic_ref(counter).load(std::memory_order_relaxed);
  }

  Counters own_{};  // where there is no mapping
  Counters* counters_ = &own_;
};

}  // namespace kvferry::connector
