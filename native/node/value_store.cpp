#include "node/value_store.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <random>
#include <span>

#include "codec/checksum.hpp"

namespace kvferry::node {
namespace {

// Where in its pages a value begins. What has no room behind that is in front of it.
//
// The kernel copies from and to sockets with "rep movsb", which on some processors (Zen 4) takes
// six times as long where the target lies 1 to 31 bytes behind the source, within pages of 4 KiB. A
// socket's buffer begins at a page, and a reply with "$4194304\r\n", so bytes from the beginning of
// a page of ours would always go to 10 behind it; what we receive comes from behind a header of 60
// or so. Half a page is far from both, and from replies that follow each other, 12 bytes on each.
constexpr std::size_t kFirstByteAt = 2 * kKiB;

// A value in pages of the pool; they go back with it.
class PagedValue final : public StoredValue {
 public:
  PagedValue(std::shared_ptr<mem::PagePool> pool, std::size_t size_bytes)
      : StoredValue(size_bytes),
        pool_(std::move(pool)),
        count_(size_bytes == 0 ? 1 : (size_bytes - 1) / pool_->page_size_bytes() + 1) {}
  ~PagedValue() override {
    // The pages that come next are those that were freed last: in their order again.
    for (std::size_t i = pages_.size(); i-- > 0;) (void)pool_->free(pages_[i]);
  }

  // How many it has when it is complete, and how many more its first bytes need.
  [[nodiscard]] std::size_t pages_count() const noexcept { return count_; }
  [[nodiscard]] std::size_t pages_wanted(std::size_t room_bytes) const noexcept {
    const std::size_t page = pool_->page_size_bytes();
    const std::size_t room = std::min(room_bytes, size_bytes());
    if (room == 0 && size_bytes() > 0) return 0;
    const std::size_t wanted = std::min(count_, (kFirstByteAt + room) / page + 1);
    return wanted - std::min(wanted, pages_.size());
  }
  void add(std::span<const mem::PageHandle> pages) {
    for (const mem::PageHandle page : pages) {
      pages_.push_back(page);
      memory_.push_back(pool_->bytes(page)->data());
    }
  }

  [[nodiscard]] std::size_t room_bytes() const noexcept override {
    if (pages_.size() == count_) return size_bytes();
    const std::size_t bytes = pages_.size() * pool_->page_size_bytes();
    return bytes < kFirstByteAt ? 0 : bytes - kFirstByteAt;
  }

  [[nodiscard]] MutableBytes piece(std::size_t offset) const noexcept override {
    const std::size_t page_size = pool_->page_size_bytes();
    const std::size_t stride = pool_->page_stride_bytes();
    const std::size_t in_pages = (kFirstByteAt + offset) % (count_ * page_size);
    std::size_t page = in_pages / page_size;
    const std::size_t at = in_pages % page_size;
    std::byte* const begin = memory_[page] + at;
    std::size_t length = page_size - at;
    // Pages that follow each other in memory are one piece.
    while (stride == page_size && page + 1 < memory_.size() &&
           memory_[page + 1] == memory_[page] + stride) {
      length += page_size;
      ++page;
    }
    return {begin, std::min(length, size_bytes() - offset)};
  }

 private:
  const std::shared_ptr<mem::PagePool> pool_;
  const std::size_t count_;
  std::vector<mem::PageHandle> pages_;
  std::vector<std::byte*> memory_;  // of each page
};

std::uint64_t random_salt() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

Result<std::unique_ptr<ValueStore>> ValueStore::create(const StoreOptions& options,
                                                       Changes* changes) {
  const std::size_t page = options.page_size_bytes;
  if (page == 0 || options.size_bytes / page == 0) {
    return Error{Errc::kInvalidArgument,
                 "a node needs room for at least one page of " + std::to_string(page) + " bytes"};
  }
  try {
    auto pool = mem::PagePool::create(page, options.size_bytes / page, options.arena);
    if (!pool) return pool.error();
    std::unique_ptr<ValueStore> store(new ValueStore(std::move(*pool), changes));
    auto policy = cache::make_policy(options.policy, store->entries_);
    if (!policy) return policy.error();
    store->policy_ = std::move(*policy);
    return store;
  } catch (const std::bad_alloc&) {
    return Error{Errc::kSystem, "no memory for the index of a node"};
  }
}

ValueStore::ValueStore(std::shared_ptr<mem::PagePool> pool, Changes* changes)
    : pool_(std::move(pool)),
      changes_(changes),
      salt_(random_salt()),
      entries_(pool_->stats().pages_count),
      table_(pool_->stats().pages_count) {}

cache::ChunkHash ValueStore::hash_of(std::string_view key) const {
  codec::Xxh3 hash;
  hash.update(ByteView(reinterpret_cast<const std::byte*>(&salt_), sizeof salt_));
  hash.update(as_bytes(key));
  return {.low = hash.digest(), .high = key.size()};
}

std::uint32_t ValueStore::find(std::string_view key) const {
  return table_.find(hash_of(key).mixed(),
                     [&](std::uint32_t slot) { return slots_[slot].key == key; });
}

std::uint32_t ValueStore::living(std::string_view key, UnixMs now, Keys& gone, Dropped& dropped) {
  const std::uint32_t slot = find(key);
  if (slot == cache::kNone || slots_[slot].expires > now) return slot;
  ++expired_;
  drop(slot, false, gone, dropped);
  return cache::kNone;
}

void ValueStore::set_expiry(std::uint32_t slot, UnixMs at) {
  Slot& place = slots_[slot];
  if (place.expires != kForever) expiring_.erase({place.expires, slot});
  place.expires = at;
  if (at != kForever) expiring_.insert({at, slot});
}

void ValueStore::drop(std::uint32_t slot, bool evicted, Keys& gone, Dropped& dropped) {
  set_expiry(slot, kForever);
  Slot& place = slots_[slot];
  table_.erase(entries_[slot].hash.mixed(), slot);
  evicted ? policy_->evicted(slot) : policy_->removed(slot);
  value_bytes_ -= place.value->size_bytes();
  dropped.push_back(std::move(place.value));
  gone.push_back(std::move(place.key));
  place = Slot{};
  entries_.give_back(slot);
  while (!slots_.empty() && slots_.back().value == nullptr) slots_.pop_back();
}

void ValueStore::tell(const Keys& keys) const {
  if (changes_ != nullptr && !keys.empty()) changes_->changed(keys);
}

// --- Reading ------------------------------------------------------------------------------------

ValuePtr ValueStore::hold(std::string_view key, UnixMs now) {
  Keys gone;
  Dropped dropped;
  ValuePtr value;
  {
    const std::lock_guard lock(mutex_);
    const std::uint32_t slot = living(key, now, gone, dropped);
    if (slot != cache::kNone) {
      policy_->touch(slot, cache::Use::kHere);
      value = slots_[slot].value;
    }
  }
  tell(gone);
  return value;
}

std::optional<Facts> ValueStore::facts(std::string_view key, UnixMs now, bool use) {
  Keys gone;
  Dropped dropped;
  std::optional<Facts> facts;
  {
    const std::lock_guard lock(mutex_);
    const std::uint32_t slot = living(key, now, gone, dropped);
    if (slot != cache::kNone) {
      if (use) policy_->touch(slot, cache::Use::kHere);
      const Slot& place = slots_[slot];
      facts = Facts{place.value->size_bytes(), place.expires};
    }
  }
  tell(gone);
  return facts;
}

std::uint64_t ValueStore::scan(std::uint64_t cursor, std::size_t count, UnixMs now,
                               const Visit& visit) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t end = slots_.size();
  for (std::size_t passed = 0; cursor < end && count > 0 && passed < kFreePassedMax; ++cursor) {
    const Slot& place = slots_[cursor];
    if (place.value == nullptr || place.expires <= now) {
      ++passed;
      continue;
    }
    visit(place.key);
    --count;
  }
  return cursor < end ? cursor : 0;
}

std::vector<ValueStore::Kept> ValueStore::all(UnixMs now) const {
  const std::lock_guard lock(mutex_);
  std::vector<Kept> kept;
  for (const Slot& place : slots_) {
    if (place.value != nullptr && place.expires > now) {
      kept.push_back({place.key, place.value, place.expires});
    }
  }
  return kept;
}

ValuesUsage ValueStore::usage() const {
  const mem::PoolStats pool = pool_->stats();
  const std::size_t page = pool_->page_stride_bytes();
  const std::lock_guard lock(mutex_);
  return {.size_bytes = pool.pages_count * page,
          .used_bytes = (pool.pages_count - pool.free_count) * page,
          .value_bytes = value_bytes_,
          .keys = entries_.resident(),
          .expiring = expiring_.size(),
          .evicted = evicted_,
          .expired = expired_,
          .refused = refused_};
}

// --- Writing ------------------------------------------------------------------------------------

// Only who has no other holder makes room by going. New holders need the lock that we have, so one
// that is alone stays so.
bool ValueStore::evict_one(std::vector<std::uint32_t>& passed, Keys& gone) {
  while (passed.size() < kPassedMax) {
    const std::uint32_t slot = policy_->victim(0);
    if (slot == cache::kNone) return false;
    if (slots_[slot].value.use_count() > 1) {
      entries_[slot].flags |= cache::kHeld;
      passed.push_back(slot);
      continue;
    }
    ++evicted_;
    Dropped dropped;  // its pages are wanted at once
    drop(slot, true, gone, dropped);
    return true;
  }
  return false;
}

Result<std::shared_ptr<StoredValue>> ValueStore::reserve(std::size_t size_bytes,
                                                         std::size_t room_bytes) {
  auto value = std::make_shared<PagedValue>(pool_, size_bytes);
  if (value->pages_count() > entries_.capacity()) {
    return Error{Errc::kInvalidArgument, "a value larger than the node"};
  }
  const Outcome extended = extend(*value, room_bytes);
  if (!extended) return extended.error();
  return std::shared_ptr<StoredValue>(std::move(value));
}

Outcome ValueStore::extend(StoredValue& stored, std::size_t room_bytes) {
  auto& value = static_cast<PagedValue&>(stored);
  const std::size_t wanted = value.pages_wanted(room_bytes);
  if (wanted == 0) return Done{};
  std::array<mem::PageHandle, 4> few;  // a small value allocates nothing here
  std::vector<mem::PageHandle> many(wanted > few.size() ? wanted : 0);
  const std::span<mem::PageHandle> pages = many.empty() ? std::span(few).first(wanted) : many;
  Keys gone;
  bool room = false;
  {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> passed;
    while (!(room = pool_->allocate_many(pages)) && evict_one(passed, gone)) {
    }
    for (const std::uint32_t slot : passed) {
      entries_[slot].flags &= static_cast<std::uint8_t>(~cache::kHeld);
      policy_->lift(slot);
    }
    if (!room) ++refused_;
  }
  tell(gone);
  if (!room) return Error{Errc::kCapacity, "all pages are in use"};
  value.add(pages);
  return Done{};
}

bool ValueStore::commit(std::string_view key, std::shared_ptr<StoredValue> value,
                        WriteOptions options, UnixMs now) {
  Keys changed;
  Dropped dropped;
  bool stored = true;
  {
    const std::lock_guard lock(mutex_);
    std::uint32_t slot = living(key, now, changed, dropped);
    if (slot != cache::kNone && options.if_absent) {
      stored = false;
    } else {
      if (slot == cache::kNone) {
        const cache::ChunkHash hash = hash_of(key);
        const std::uint8_t mark = policy_->prepare(hash);
        slot = entries_.take(hash);
        entries_[slot].mark = mark;
        entries_[slot].state = cache::State::kReady;
        if (slot >= slots_.size()) slots_.resize(slot + 1);
        slots_[slot].key = key;
        table_.insert(hash.mixed(), slot);
        policy_->admit(slot);
      } else {
        policy_->touch(slot, cache::Use::kHere);
        value_bytes_ -= slots_[slot].value->size_bytes();
        dropped.push_back(std::move(slots_[slot].value));
      }
      value_bytes_ += value->size_bytes();
      slots_[slot].value = std::move(value);
      set_expiry(slot, options.expires);
      if (slots_[slot].expires <= now) {
        drop(slot, false, changed, dropped);
      } else {
        changed.emplace_back(key);
      }
    }
  }
  tell(changed);
  return stored;
}

bool ValueStore::remove(std::string_view key, UnixMs now) {
  Keys gone;
  Dropped dropped;
  bool there = false;
  {
    const std::lock_guard lock(mutex_);
    const std::uint32_t slot = living(key, now, gone, dropped);
    there = slot != cache::kNone;
    if (there) drop(slot, false, gone, dropped);
  }
  tell(gone);
  return there;
}

void ValueStore::clear() {
  Keys gone;
  Dropped dropped;
  {
    const std::lock_guard lock(mutex_);
    // From the end, so that the first places are the next to be used, and a scan is short.
    while (!slots_.empty()) {
      drop(static_cast<std::uint32_t>(slots_.size() - 1), false, gone, dropped);
    }
  }
  if (changes_ != nullptr) changes_->cleared();
}

void ValueStore::sweep(UnixMs now) {
  Keys gone;
  Dropped dropped;
  {
    const std::lock_guard lock(mutex_);
    while (gone.size() < kSweptMax && !expiring_.empty() && expiring_.begin()->first <= now) {
      ++expired_;
      drop(expiring_.begin()->second, false, gone, dropped);
    }
  }
  tell(gone);
}

}  // namespace kvferry::node
