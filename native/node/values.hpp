#pragma once
// Values: what a node lends out, as its connections see it: look up and hold, reserve and commit,
// remove, scan, usage. ValueStore is one implementation; a pool that others own can be another.
//
// A StoredValue is memory in pieces. Whoever holds one keeps its memory: what is evicted, removed
// or replaced meanwhile is gone for who asks next, and its pages come back when the last holder
// lets go. So eviction cannot race with sending.
//
// Times are Unix time in milliseconds, because clients name moments and states outlive a process.
// Threads: every call from any thread. Failure: kCapacity when there is no room now,
// kInvalidArgument for what can never fit.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/result.hpp"

namespace kvferry::node {

using UnixMs = std::int64_t;
inline constexpr UnixMs kForever = INT64_MAX;

class StoredValue {
 public:
  explicit StoredValue(std::size_t size_bytes) noexcept : size_bytes_(size_bytes) {}
  virtual ~StoredValue() = default;
  StoredValue(const StoredValue&) = delete;
  StoredValue& operator=(const StoredValue&) = delete;

  [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }
  // The consecutive memory that begins at `offset`, up to the end of its piece.
  // Requires: offset < size_bytes(). Written by whoever reserved it, before commit() only.
  [[nodiscard]] virtual MutableBytes piece(std::size_t offset) const noexcept = 0;
  // How many of its first bytes have memory: piece() is for those.
  [[nodiscard]] virtual std::size_t room_bytes() const noexcept { return size_bytes_; }

 private:
  const std::size_t size_bytes_;
};

// Owners: the index, connections that send or receive it.
using ValuePtr = std::shared_ptr<const StoredValue>;

struct Facts {
  std::size_t size_bytes = 0;
  UnixMs expires = kForever;
};

struct WriteOptions {
  UnixMs expires = kForever;
  bool if_absent = false;  // NX
};

struct ValuesUsage {
  std::size_t size_bytes = 0;   // the limit
  std::size_t used_bytes = 0;   // of what is there, arrives, or is still being sent
  std::size_t value_bytes = 0;  // of what is there, without the rest of its last pages
  std::size_t keys = 0;
  std::size_t expiring = 0;  // keys with a time to live
  std::uint64_t evicted = 0, expired = 0, refused = 0;
};

// Learns what changed, after it did; called by whichever thread changed it, without a lock.
class Changes {
 public:
  virtual ~Changes() = default;
  virtual void changed(const std::vector<std::string>& keys) = 0;
  virtual void cleared() = 0;
};

class Values {
 public:
  virtual ~Values() = default;

  // The value, used; null: not there.
  virtual ValuePtr hold(std::string_view key, UnixMs now) = 0;
  // Facts about it; `use` tells the policy that it was wanted.
  virtual std::optional<Facts> facts(std::string_view key, UnixMs now, bool use) = 0;

  // Memory for the first `room_bytes` of a value that arrives; what is in its way is evicted.
  virtual Result<std::shared_ptr<StoredValue>> reserve(std::size_t size_bytes,
                                                       std::size_t room_bytes = SIZE_MAX) = 0;
  // The same for more of a value that reserve() gave.
  virtual Outcome extend(StoredValue& value, std::size_t room_bytes) = 0;
  // Makes it the value of `key`. False: `if_absent`, and there is one.
  virtual bool commit(std::string_view key, std::shared_ptr<StoredValue> value,
                      WriteOptions options, UnixMs now) = 0;

  virtual bool remove(std::string_view key, UnixMs now) = 0;
  virtual void clear() = 0;

  // Visits up to `count` keys from `cursor` on, or fewer; returns where to go on, 0 at the end. A
  // key that is there all the time is visited exactly once.
  using Visit = std::function<void(std::string_view key)>;
  virtual std::uint64_t scan(std::uint64_t cursor, std::size_t count, UnixMs now,
                             const Visit& visit) = 0;
  virtual ValuesUsage usage() const = 0;
  // Removes some of what has expired; to be called every now and then.
  virtual void sweep(UnixMs now) = 0;
};

// Values that others own, and that nobody can change from here.
class LentOnly : public Values {
 public:
  Result<std::shared_ptr<StoredValue>> reserve(std::size_t /*size_bytes*/,
                                               std::size_t /*room_bytes*/) final {
    return Error{Errc::kInvalidArgument,
                 "this is the memory of a cache, which lends and takes not"};
  }
  Outcome extend(StoredValue& /*value*/, std::size_t /*room_bytes*/) final {
    return Error{Errc::kInvalidArgument, "nothing arrives here"};
  }
  bool commit(std::string_view /*key*/, std::shared_ptr<StoredValue> /*value*/,
              WriteOptions /*options*/, UnixMs /*now*/) final {
    return false;
  }
  bool remove(std::string_view /*key*/, UnixMs /*now*/) final { return false; }
  void clear() final {}
};

}  // namespace kvferry::node
