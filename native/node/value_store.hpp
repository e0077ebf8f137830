#pragma once
// ValueStore: keyed values over a pool of pages, with eviction by any policy of the cache, and
// expiry. All memory for values is mapped at the start, and is a hard limit.
//
// A value takes whole pages, at least one, as it arrives. What is being sent is passed over by
// eviction, because taking it would make no room yet. A key keeps its slot as long as it stays,
// which is what makes scan() complete.
//
// Threads: every call from any thread; one mutex, held for a few instructions, for as many
// evictions as a reservation needs, and for `count` keys of a scan. The last holder of a value
// gives its pages back on its own thread.
// Lifetime: values may outlive the store; the pool lives as long as any of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "cache/entries.hpp"
#include "cache/policy.hpp"
#include "cache/slot_table.hpp"
#include "mem/page_pool.hpp"
#include "node/values.hpp"

namespace kvferry::node {

struct StoreOptions {
  std::size_t size_bytes = 0;
  std::size_t page_size_bytes = 64 * kKiB;
  std::string policy = "LRU";
  mem::ArenaOptions arena{};
};

class ValueStore final : public Values {
 public:
  static constexpr std::size_t kPassedMax =
      1024;  // candidates in use that one reservation passes over
  static constexpr std::size_t kSweptMax = 256;
  static constexpr std::size_t kFreePassedMax = 1024;  // places without a key in one scan()

  // `changes` (null: nobody) outlives the store.
  // Fails with: kInvalidArgument for the size or policy, kSystem without memory.
  static Result<std::unique_ptr<ValueStore>> create(const StoreOptions& options,
                                                    Changes* changes = nullptr);

  ValuePtr hold(std::string_view key, UnixMs now) override;
  std::optional<Facts> facts(std::string_view key, UnixMs now, bool use) override;
  Result<std::shared_ptr<StoredValue>> reserve(std::size_t size_bytes,
                                               std::size_t room_bytes = SIZE_MAX) override;
  Outcome extend(StoredValue& value, std::size_t room_bytes) override;
  bool commit(std::string_view key, std::shared_ptr<StoredValue> value, WriteOptions options,
              UnixMs now) override;
  bool remove(std::string_view key, UnixMs now) override;
  void clear() override;
  std::uint64_t scan(std::uint64_t cursor, std::size_t count, UnixMs now,
                     const Visit& visit) override;
  ValuesUsage usage() const override;
  void sweep(UnixMs now) override;

  struct Kept {
    std::string key;
    ValuePtr value;
    UnixMs expires;
  };
  // Everything that has not expired; holds all of it.
  [[nodiscard]] std::vector<Kept> all(UnixMs now) const;

 private:
  struct Slot {
    std::string key;
    std::shared_ptr<StoredValue> value;
    UnixMs expires = kForever;
  };
  using Keys = std::vector<std::string>;
  using Dropped = std::vector<std::shared_ptr<StoredValue>>;  // freed without the lock

  ValueStore(std::shared_ptr<mem::PagePool> pool, Changes* changes);

  [[nodiscard]] cache::ChunkHash hash_of(std::string_view key) const;
  [[nodiscard]] std::uint32_t find(std::string_view key) const;
  // find(), after a value that has expired was dropped.
  std::uint32_t living(std::string_view key, UnixMs now, Keys& gone, Dropped& dropped);
  bool evict_one(std::vector<std::uint32_t>& passed, Keys& gone);
  void drop(std::uint32_t slot, bool evicted, Keys& gone, Dropped& dropped);
  void set_expiry(std::uint32_t slot, UnixMs at);
  void tell(const Keys& keys) const;

  const std::shared_ptr<mem::PagePool> pool_;  // owners: this, and each value
  Changes* const changes_;
  const std::uint64_t salt_;  // so that nobody can choose keys that meet in the table

  mutable std::mutex mutex_;  // guards what follows
  cache::Entries entries_;
  cache::SlotTable table_;
  std::unique_ptr<cache::Policy> policy_;
  std::vector<Slot> slots_;  // up to the last that has a value
  std::set<std::pair<UnixMs, std::uint32_t>> expiring_;
  std::size_t value_bytes_ = 0;
  std::uint64_t evicted_ = 0, expired_ = 0, refused_ = 0;
};

}  // namespace kvferry::node
