#pragma once
// ChangeLog: the last chunks that came and went, numbered, for those who tell others of them.
//
// A reader goes on from the number where it stopped. One that falls behind by more than the log
// keeps is told so, and looks at everything again.
//
// A machine: no clock, no lock; memory is fixed at construction. Threads: one at a time.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cache/hashes.hpp"

namespace kvferry::cache {

struct Change {
  ChunkHash hash;
  bool ready = false;  // it can be had from now on; false: not any more
};

class ChangeLog {
 public:
  // Requires: capacity > 0.
  explicit ChangeLog(std::size_t capacity) : changes_(capacity) {}

  void note(const ChunkHash& hash, bool ready) noexcept {
    changes_[next_ % changes_.size()] = {hash, ready};
    ++next_;
  }

  // The number of the next change.
  [[nodiscard]] std::uint64_t next() const noexcept { return next_; }

  // Appends up to `max` changes from number `from` on; returns the number to go on from. Nothing:
  // some of them are not kept any more.
  std::optional<std::uint64_t> read(std::uint64_t from, std::size_t max,
                                    std::vector<Change>& out) const {
    if (from > next_ || next_ - from > changes_.size()) return std::nullopt;
    const std::uint64_t end = from + std::min<std::uint64_t>(next_ - from, max);
    for (; from < end; ++from) out.push_back(changes_[from % changes_.size()]);
    return end;
  }

 private:
  std::vector<Change> changes_;
  std::uint64_t next_ = 0;
};

}  // namespace kvferry::cache
