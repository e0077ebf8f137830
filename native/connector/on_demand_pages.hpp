#pragma once
// OnDemandPages: pages of a cache for chunks that a store is asked for before anybody knows whether
// it has them.
//
// A chunk gets its page when its value comes (buffer()), or when somebody else has said that it
// will (keep()). So what is not there costs no page, and evicts nothing. A chunk that others bring,
// that has no room, or that is not wanted any more gets none, and its value is read away.
//
// Life: made for hashes[first:]; submitted as the buffers of a job; keep() says how many are
// wanted; when the job is finished, commit() or abort() ends it. Until then nobody else gets its
// pages.
// Threads: any; one mutex, the cache's lock is taken inside it.

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "cache/chunk_cache.hpp"
#include "mem/buffer_source.hpp"

namespace kvferry::connector {

class OnDemandPages final : public mem::BufferSource {
 public:
  // Crosses into Python as one byte, so the numbers are fixed.
  enum class State : std::uint8_t { kNone = 0, kPlaced = 1, kElsewhere = 2, kNoRoom = 3 };

  // `hashes`: of the whole request, root first. Requires: the cache has a pool, first < size.
  OnDemandPages(std::shared_ptr<cache::ChunkCache> cache, std::vector<std::byte> hashes,
                std::size_t first, Nanos ttl);
  // Requires: no job that uses it runs any more.
  ~OnDemandPages() override;
  OnDemandPages(const OnDemandPages&) = delete;
  OnDemandPages& operator=(const OnDemandPages&) = delete;

  [[nodiscard]] std::size_t size() const noexcept { return items_.size(); }
  [[nodiscard]] std::size_t page_size_bytes() const noexcept;

  std::byte* buffer(std::size_t index) noexcept override;
  [[nodiscard]] bool wanted() const noexcept override;

  // Only the first `count` are wanted from now on, and those get their pages now.
  void keep(std::size_t count);
  // Each chunk's state, and its page where it has one.
  void states(std::span<std::uint8_t> states, std::span<std::uint64_t> pages) const;

  // The job is finished: placed chunks with a byte other than 0 in `ok` become ready, the others
  // leave; how many became ready. Later calls do nothing.
  std::size_t commit(std::span<const std::uint8_t> ok);
  void abort() { commit({}); }

 private:
  struct Item {
    State state = State::kNone;
    std::uint64_t reservation = 0;
    std::uint64_t page = 0;
    std::byte* data = nullptr;
  };
  void take(std::size_t index);

  const std::shared_ptr<cache::ChunkCache> cache_;  // owners: this, Python's ChunkCache
  const std::vector<std::byte> hashes_;
  const std::size_t first_;
  const Nanos ttl_;
  const std::uint64_t clears_;  // of the cache when it began
  mutable std::mutex mutex_;    // guards what follows
  std::vector<Item> items_;
  std::size_t wanted_;
};

}  // namespace kvferry::connector
