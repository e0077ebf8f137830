#pragma once
// LentValues: what several caches lend out, as one: each has the keys that begin with its prefix.
//
// Caches come and go while connections read: whoever holds a value keeps it.
//
// Each has one more key, <prefix>generation: the text that mark() was given, by which readers hear
// of clears. A cache that is marked is lent for a while only. So a process that was stopped, and
// may have missed a clear, lends nothing until it has asked and marks it again.
//
// Threads: every call from any thread.

#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "node/chunk_values.hpp"
#include "node/values.hpp"

namespace kvferry::node {

class LentValues final : public LentOnly {
 public:
  // `changes` (null: nobody) outlives this.
  explicit LentValues(Changes* changes = nullptr) : changes_(changes) {}

  // Fails with: what ChunkValues::create fails with; kInvalidArgument for a prefix that begins like
  // that of another cache.
  Outcome lend(std::shared_ptr<cache::ChunkCache> cache, const std::string& prefix,
               std::uint64_t identity, std::size_t chunk_bytes);
  // The cache of this prefix is not lent any more. False: it was not.
  bool recall(const std::string& prefix);
  // From now on <prefix>generation is `text`, and the cache is lent until `lent_until`, a moment of
  // monotonic_ns(). False: no cache of this prefix is lent.
  bool mark(const std::string& prefix, const std::string& text, Nanos lent_until);

  ValuePtr hold(std::string_view key, UnixMs now) override;
  std::optional<Facts> facts(std::string_view key, UnixMs now, bool use) override;
  std::uint64_t scan(std::uint64_t cursor, std::size_t count, UnixMs now,
                     const Visit& visit) override;
  ValuesUsage usage() const override;
  void sweep(UnixMs now) override;

 private:
  struct Lent {
    std::uint32_t number;  // of scans
    std::shared_ptr<ChunkValues> values;
    ValuePtr mark;  // null: nobody has marked it
    Nanos until = kNoEnd;
  };
  using All = std::map<std::string, Lent, std::less<>>;
  static constexpr Nanos kNoEnd = INT64_MAX;

  [[nodiscard]] All::const_iterator find(std::string_view key) const;  // with the lock
  [[nodiscard]] std::shared_ptr<ChunkValues> of(std::string_view key) const;
  [[nodiscard]] ValuePtr mark_of(std::string_view key) const;

  Changes* const changes_;
  mutable std::shared_mutex mutex_;  // guards what follows
  All all_;
  std::uint32_t next_ = 0;
};

}  // namespace kvferry::node
