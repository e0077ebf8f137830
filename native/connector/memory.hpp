#pragma once
// The memory driver: values in this process, for tests and for engines that share a process.
//
// A store without a name belongs to its connector; one with a name is shared by all connectors of
// the process that open it, and ends with the last of them. Values are framed as in codec/frame.hpp
// (key, identity, length), without a checksum: nobody but this process can have damaged them.
//
// Limits: capacity_bytes, payload and 64 bytes for each value; a SET beyond it is kServerError.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "connector/pooled.hpp"

namespace kvferry::connector {

class MemoryStore {
 public:
  struct Value {
    std::array<std::byte, codec::kFrameSizeBytes> header{};
    Identity identity{};
    std::unique_ptr<std::byte[]> payload;
    std::size_t size = 0;
    Nanos expires = kNever;
    std::atomic<Nanos> used{0};  // when it was last of use
  };

  // The store of that name in this process; empty: a new one.
  // Fails with: kInvalidArgument (it is open with another capacity).
  static Result<std::shared_ptr<MemoryStore>> open(const std::string& name,
                                                   std::uint64_t capacity_bytes);
  explicit MemoryStore(std::uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // Null: there is none. The value stays whole while somebody holds it.
  std::shared_ptr<const Value> find(const std::string& key);
  // Whether it was there. With `only`, it goes only if it is still that one.
  bool erase(const std::string& key, const Value* only = nullptr);
  // Whether so many more bytes have a place: then they are taken, until put() or give_back().
  [[nodiscard]] bool reserve(std::size_t bytes);
  void give_back(std::size_t bytes);
  // Stores a value whose bytes are reserved.
  void put(const std::string& key, std::shared_ptr<Value> value);

  [[nodiscard]] Usage usage() const;
  [[nodiscard]] std::string full_text() const;
  [[nodiscard]] std::vector<ScanPage::Entry> list(const Space& space) const;
  void describe(const Identity& identity, const std::string& text);
  [[nodiscard]] std::vector<std::pair<Identity, std::string>> descriptions() const;

  [[nodiscard]] static std::size_t cost(std::size_t payload_bytes) noexcept {
    return payload_bytes + codec::kFrameSizeBytes;
  }

 private:
  struct Registry;
  void drop(std::unordered_map<std::string, std::shared_ptr<Value>>::iterator at);

  const std::uint64_t capacity_bytes_;  // 0: no limit
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Value>> values_;  // shared with readers
  std::uint64_t used_bytes_ = 0;
  std::map<Identity, std::string> descriptions_;
};

class MemoryConnector final : public PooledConnector {
 public:
  // Fails with: kInvalidArgument, kSystem.
  static Result<std::shared_ptr<Connector>> open(Space space, const std::string& name,
                                                 std::uint64_t capacity_bytes,
                                                 std::size_t queued_keys_max = kQueuedKeysMax);

  MemoryConnector(Space space, EventFd event, std::size_t queued_keys_max,
                  std::shared_ptr<MemoryStore> store)
      : PooledConnector(std::move(space), std::move(event), queued_keys_max),
        store_(std::move(store)) {}

  [[nodiscard]] Result<Usage> usage() const override { return store_->usage(); }
  Result<ScanPage> scan(std::uint64_t) override { return ScanPage{store_->list(space()), 0}; }
  Result<std::vector<std::pair<Identity, std::string>>> descriptions() override {
    return store_->descriptions();
  }

 private:
  KeyOutcome perform(Job& job, std::size_t index) override;
  KeyOutcome get(const std::string& key, MutableBytes target);
  KeyOutcome set(const std::string& key, ByteView source, std::int64_t ttl_ms);

  const std::shared_ptr<MemoryStore> store_;  // shared with the store's other connectors
};

}  // namespace kvferry::connector
