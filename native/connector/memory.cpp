#include "connector/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "codec/checksum.hpp"
#include "codec/little_endian.hpp"

namespace kvferry::connector {

// By name. A forked child begins with a new one: a thread that is not there may hold the lock.
struct MemoryStore::Registry {
  const pid_t pid = ::getpid();
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<MemoryStore>> stores;

  static Registry& here() {
    static std::atomic<Registry*> current{nullptr};
    Registry* registry = current.load(std::memory_order_acquire);
    while (registry == nullptr || registry->pid != ::getpid()) {
      auto fresh = std::make_unique<Registry>();
      // Whoever loses takes the winner's (acquire pairs with this release).
      if (current.compare_exchange_strong(registry, fresh.get(), std::memory_order_acq_rel)) {
        registry = fresh.release();  // lives as long as the process
      }
    }
    return *registry;
  }
};

Result<std::shared_ptr<MemoryStore>> MemoryStore::open(const std::string& name,
                                                       std::uint64_t capacity_bytes) {
  if (name.empty()) return std::make_shared<MemoryStore>(capacity_bytes);
  Registry& registry = Registry::here();
  const std::lock_guard lock(registry.mutex);
  std::weak_ptr<MemoryStore>& known = registry.stores[name];
  if (auto store = known.lock()) {
    if (store->capacity_bytes_ != capacity_bytes) {
      return Error{Errc::kInvalidArgument, "the memory store \"" + name +
                                               "\" is open with a capacity of " +
                                               std::to_string(store->capacity_bytes_) +
                                               " bytes, not " + std::to_string(capacity_bytes)};
    }
    return store;
  }
  auto store = std::make_shared<MemoryStore>(capacity_bytes);
  known = store;
  return store;
}

std::shared_ptr<const MemoryStore::Value> MemoryStore::find(const std::string& key) {
  const Nanos now = monotonic_ns();
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return nullptr;
  if (found->second->expires <= now) {
    drop(found);
    return nullptr;
  }
  return found->second;
}

bool MemoryStore::erase(const std::string& key, const Value* only) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end() || (only != nullptr && found->second.get() != only)) return false;
  const bool alive = found->second->expires > monotonic_ns();
  drop(found);
  return alive;
}

bool MemoryStore::reserve(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (capacity_bytes_ != 0 && used_bytes_ + bytes > capacity_bytes_) {
    const Nanos now = monotonic_ns();
    for (auto at = values_.begin(); at != values_.end();) {
      const auto each = at++;
      if (each->second->expires <= now) drop(each);
    }
    if (used_bytes_ + bytes > capacity_bytes_) return false;
  }
  used_bytes_ += bytes;
  return true;
}

void MemoryStore::give_back(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
}

void MemoryStore::put(const std::string& key, std::shared_ptr<Value> value) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Value>& place = values_[key];
  if (place) used_bytes_ -= cost(place->size);
  place = std::move(value);
}

void MemoryStore::drop(std::unordered_map<std::string, std::shared_ptr<Value>>::iterator at) {
  used_bytes_ -= cost(at->second->size);
  values_.erase(at);
}

Usage MemoryStore::usage() const {
  const std::lock_guard lock(mutex_);
  Usage usage{.used_bytes = used_bytes_, .capacity_bytes = {}, .keys = values_.size()};
  if (capacity_bytes_ != 0) usage.capacity_bytes = capacity_bytes_;
  return usage;
}

std::string MemoryStore::full_text() const {
  return "OOM the memory store is full: " + std::to_string(usage().used_bytes) + " of " +
         std::to_string(capacity_bytes_) + " bytes are used";
}

std::vector<ScanPage::Entry> MemoryStore::list(const Space& space) const {
  const Nanos now = monotonic_ns();
  std::vector<ScanPage::Entry> entries;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, value] : values_) {
    if (!key.starts_with(space.prefix) || value->identity != space.identity) continue;
    if (value->expires <= now) continue;
    entries.push_back(
        {key.substr(space.prefix.size()), now - value->used.load(std::memory_order_relaxed)});
  }
  return entries;
}

void MemoryStore::describe(const Identity& identity, const std::string& text) {
  const std::lock_guard lock(mutex_);
  descriptions_[identity] = text;
}

std::vector<std::pair<Identity, std::string>> MemoryStore::descriptions() const {
  const std::lock_guard lock(mutex_);
  return {descriptions_.begin(), descriptions_.end()};
}

Result<std::shared_ptr<Connector>> MemoryConnector::open(Space space, const std::string& name,
                                                         std::uint64_t capacity_bytes,
                                                         std::size_t queued_keys_max) {
  auto store = MemoryStore::open(name, capacity_bytes);
  if (!store) return store.error();
  auto event = EventFd::open();
  if (!event) return event.error();
  (*store)->describe(space.identity, space.description);
  auto connector = std::make_shared<MemoryConnector>(std::move(space), std::move(*event),
                                                     queued_keys_max, std::move(*store));
  if (const Outcome started = connector->launch({1, 2, 2}); !started) return started.error();
  return std::shared_ptr<Connector>(std::move(connector));
}

KeyOutcome MemoryConnector::perform(Job& job, std::size_t index) {
  const std::string key = full_key(space(), job.key(index));
  switch (job.options().verb) {
    case Verb::kGet:
      return get(key, job.buffer(index));
    case Verb::kSet:
      return set(key, job.buffer(index), job.options().ttl_ms);
    case Verb::kExists:
    case Verb::kTouch: {
      const auto value = store_->find(key);
      if (!value) return {.status = Status::kMiss, .size = 0, .why = {}};
      if (job.options().verb == Verb::kTouch) {
        const_cast<MemoryStore::Value&>(*value).used.store(monotonic_ns(),
                                                           std::memory_order_relaxed);
      }
      return {};
    }
    case Verb::kDelete:
      return {.status = store_->erase(key) ? Status::kOk : Status::kMiss, .size = 0, .why = {}};
    case Verb::kPing:
    case Verb::kCall:
      break;
  }
  return {.status = Status::kServerError, .size = 0, .why = "not a verb"};
}

KeyOutcome MemoryConnector::get(const std::string& key, MutableBytes target) {
  const auto value = store_->find(key);
  if (!value) return {.status = Status::kMiss, .size = 0, .why = {}};
  codec::Frame frame;
  codec::FrameFault fault = codec::decode_frame(value->header, frame);
  if (fault == codec::FrameFault::kNone) {
    fault = codec::check_frame(frame,
                               {.identity = codec::load_le<std::uint64_t>(space().identity.data()),
                                .key_digest = codec::xxh3_64(as_bytes(key)),
                                .payload_size_bytes = target.size(),
                                .original_size_bytes = target.size()});
  }
  // The frame has half of the identity.
  if (fault == codec::FrameFault::kNone && value->identity != space().identity) {
    fault = codec::FrameFault::kIdentity;
  }
  if (fault != codec::FrameFault::kNone) {
    refused(fault, key);
    store_->erase(key, value.get());
    const bool size = fault == codec::FrameFault::kSize;
    return {.status = size ? Status::kSizeMismatch : Status::kCorrupt,
            .size = value->size,
            .why = std::string(codec::name(fault))};
  }
  std::memcpy(target.data(), value->payload.get(), target.size());
  const_cast<MemoryStore::Value&>(*value).used.store(monotonic_ns(), std::memory_order_relaxed);
  return {.status = Status::kOk, .size = target.size(), .why = {}};
}

KeyOutcome MemoryConnector::set(const std::string& key, ByteView source, std::int64_t ttl_ms) {
  // A value replaces its like without needing a place for both: the old one goes first.
  const std::size_t cost = MemoryStore::cost(source.size());
  if (!store_->reserve(cost)) {
    if (!store_->erase(key) || !store_->reserve(cost)) {
      return {.status = Status::kServerError, .size = 0, .why = store_->full_text()};
    }
  }
  std::shared_ptr<MemoryStore::Value> value;
  try {
    value = std::make_shared<MemoryStore::Value>();
    value->payload = std::make_unique_for_overwrite<std::byte[]>(source.size());
  } catch (const std::bad_alloc&) {
    store_->give_back(cost);
    return {.status = Status::kServerError, .size = 0, .why = "OOM this host has no memory left"};
  }
  std::memcpy(value->payload.get(), source.data(), source.size());
  value->size = source.size();
  value->identity = space().identity;
  const Nanos now = monotonic_ns();
  if (ttl_ms > 0) value->expires = add_time(now, ttl_ms * kMilli);
  value->used.store(now, std::memory_order_relaxed);
  codec::encode_frame({.payload_size_bytes = source.size(),
                       .original_size_bytes = source.size(),
                       .identity = codec::load_le<std::uint64_t>(space().identity.data()),
                       .key_digest = codec::xxh3_64(as_bytes(key))},
                      value->header);
  store_->put(key, std::move(value));
  return {.status = Status::kOk, .size = source.size(), .why = {}};
}

}  // namespace kvferry::connector
