#pragma once
// ChunkValues: the chunks of a cache, lent out of its own pages under the names that a store has
// for them: <prefix><32 hex digits of the hash>, and the stripes of larger ones behind "#1", "#2".
//
// What is lent is what a store would answer: the frame, which says whose bytes they are and has
// their checksum, and then the page itself. A page is leased in the cache exactly as long as
// somebody holds the value, so it is never handed out again while it is being sent. Whoever reads
// checks the frame: bytes of another chunk cannot pass for it.
//
// Nobody can write. What the cache takes in or loses is told to `changes` by sweep(), which the
// server calls all the time; where too much happened in between, it tells that everything may have
// changed.
//
// Threads: every call from any thread. Checksums are computed by whoever holds a chunk first, once
// for each use of a page.
// Lifetime: values may outlive this; cache and pool live as long as any of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.hpp"
#include "cache/chunk_cache.hpp"
#include "codec/stripe.hpp"
#include "node/values.hpp"

namespace kvferry::node {

class ChunkValues final : public LentOnly {
 public:
  // `identity`: the first 8 bytes of the digest, little-endian, as frames have it. `changes` (null:
  // nobody) outlives this.
  // Fails with: kInvalidArgument for a cache without pages, or chunks longer than those.
  static Result<std::unique_ptr<ChunkValues>> create(std::shared_ptr<cache::ChunkCache> cache,
                                                     std::string prefix, std::uint64_t identity,
                                                     std::size_t chunk_bytes,
                                                     Changes* changes = nullptr);

  ValuePtr hold(std::string_view key, UnixMs now) override;
  std::optional<Facts> facts(std::string_view key, UnixMs now, bool use) override;
  std::uint64_t scan(std::uint64_t cursor, std::size_t count, UnixMs now,
                     const Visit& visit) override;
  ValuesUsage usage() const override;
  void sweep(UnixMs now) override;

 private:
  class Lent;

  // Which piece of which chunk a name means.
  struct Name {
    cache::ChunkHash hash;
    std::size_t stripe = 0;
  };
  // The checksums of the stripes of the chunk that a page has.
  struct Sums {
    std::uint64_t page = 0;  // this use of it; see PageHandle
    std::vector<std::uint64_t> stripes;
  };

  ChunkValues(std::shared_ptr<cache::ChunkCache> cache, std::string prefix, std::uint64_t identity,
              std::size_t chunk_bytes, Changes* changes);

  [[nodiscard]] std::optional<Name> read(std::string_view key) const;
  [[nodiscard]] std::string name_of(const cache::ChunkHash& hash) const;
  std::vector<std::uint64_t> sums_of(std::uint64_t page, ByteView bytes);

  const std::shared_ptr<cache::ChunkCache> cache_;  // owners: the engine's memory, this, values
  const std::string prefix_;
  const std::uint64_t identity_;
  const std::size_t chunk_bytes_;
  const codec::StripePlan plan_;
  Changes* const changes_;

  std::mutex mutex_;                              // guards what follows
  std::unordered_map<std::uint32_t, Sums> sums_;  // by the index of the page
  std::uint64_t told_ = 0;                        // changes before this number were told
};

}  // namespace kvferry::node
