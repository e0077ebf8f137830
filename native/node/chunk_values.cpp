#include "node/chunk_values.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/hex.hpp"
#include "codec/checksum.hpp"
#include "codec/frame.hpp"

namespace kvferry::node {
namespace {

using cache::ChunkHash;
using cache::Hashes;
using cache::Use;

constexpr std::size_t kHexDigits = 2 * cache::kHashBytes;
// Who holds a value for longer keeps its page all the same; the chunk may then be evicted.
constexpr Nanos kHoldTime = 60 * kSecond;
constexpr std::size_t kChangesKept = 65'536;
constexpr std::size_t kChangesTold = 4096;  // at a time

// The value of a lower-case hex digit, -1 for anything else: names are compared as text.
int digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The bytes of one hash, for calls that take a request.
class One {
 public:
  explicit One(const ChunkHash& hash) noexcept { hash.store(bytes_.data()); }
  operator Hashes() const noexcept { return Hashes(bytes_); }  // NOLINT implicit

 private:
  std::array<std::byte, cache::kHashBytes> bytes_{};
};

}  // namespace

class ChunkValues::Lent final : public StoredValue {
 public:
  Lent(std::shared_ptr<cache::ChunkCache> cache, std::uint64_t lease, const codec::Frame& frame,
       MutableBytes payload) noexcept
      : StoredValue(codec::kFrameSizeBytes + payload.size()),
        cache_(std::move(cache)),
        lease_(lease),
        payload_(payload) {
    codec::encode_frame(frame, header_);
  }
  ~Lent() override { cache_->release(lease_); }

  [[nodiscard]] MutableBytes piece(std::size_t offset) const noexcept override {
    if (offset < header_.size()) return MutableBytes(header_).subspan(offset);
    return payload_.subspan(offset - header_.size());
  }

 private:
  const std::shared_ptr<cache::ChunkCache> cache_;
  const std::uint64_t lease_;
  const MutableBytes payload_;
  mutable std::array<std::byte, codec::kFrameSizeBytes> header_{};
};

Result<std::unique_ptr<ChunkValues>> ChunkValues::create(std::shared_ptr<cache::ChunkCache> cache,
                                                         std::string prefix, std::uint64_t identity,
                                                         std::size_t chunk_bytes,
                                                         Changes* changes) {
  if (!cache->has_pool() || chunk_bytes == 0 || chunk_bytes > cache->pool()->page_size_bytes()) {
    return Error{Errc::kInvalidArgument,
                 "chunks of " + std::to_string(chunk_bytes) + " bytes are not in these pages"};
  }
  return std::unique_ptr<ChunkValues>(
      new ChunkValues(std::move(cache), std::move(prefix), identity, chunk_bytes, changes));
}

ChunkValues::ChunkValues(std::shared_ptr<cache::ChunkCache> cache, std::string prefix,
                         std::uint64_t identity, std::size_t chunk_bytes, Changes* changes)
    : cache_(std::move(cache)),
      prefix_(std::move(prefix)),
      identity_(identity),
      chunk_bytes_(chunk_bytes),
      plan_(codec::stripe_plan(chunk_bytes)),
      changes_(changes) {
  if (changes_ != nullptr) told_ = cache_->watch(kChangesKept);
}

// Only the one spelling that name_of() has means a chunk.
std::optional<ChunkValues::Name> ChunkValues::read(std::string_view key) const {
  if (!key.starts_with(prefix_)) return std::nullopt;
  key.remove_prefix(prefix_.size());
  if (key.size() < kHexDigits) return std::nullopt;
  std::array<std::byte, cache::kHashBytes> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const int high = digit(key[2 * i]), low = digit(key[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes[i] = static_cast<std::byte>(high << 4 | low);
  }
  Name name{ChunkHash::load(bytes.data())};
  key.remove_prefix(kHexDigits);
  if (key.empty()) return name;
  if (key.size() < 2 || key[0] != '#' || key[1] == '0') return std::nullopt;
  const auto parsed = std::from_chars(key.data() + 1, key.data() + key.size(), name.stripe);
  if (parsed.ec != std::errc{} || parsed.ptr != key.data() + key.size()) return std::nullopt;
  if (name.stripe >= plan_.count) return std::nullopt;
  return name;
}

std::string ChunkValues::name_of(const ChunkHash& hash) const {
  std::array<std::byte, cache::kHashBytes> bytes{};
  hash.store(bytes.data());
  std::string name = prefix_;
  append_hex(name, bytes);
  return name;
}

std::vector<std::uint64_t> ChunkValues::sums_of(std::uint64_t page, ByteView bytes) {
  const std::uint32_t index = mem::PageHandle::unpack(page).index;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sums_.find(index);
    if (found != sums_.end() && found->second.page == page) return found->second.stripes;
  }
  std::vector<std::uint64_t> stripes;
  for (std::size_t stripe = 0; stripe < plan_.count; ++stripe) {
    const auto extent = codec::stripe_extent(plan_, stripe);
    stripes.push_back(codec::xxh3_64(bytes.subspan(extent.offset, extent.size_bytes)));
  }
  const std::lock_guard lock(mutex_);
  sums_[index] = {page, stripes};
  return stripes;
}

ValuePtr ChunkValues::hold(std::string_view key, UnixMs /*now*/) {
  const auto name = read(key);
  if (!name) return nullptr;
  const auto lease = cache_->acquire(One(name->hash), kHoldTime, Use::kCopied);
  if (lease.id == 0) return nullptr;
  const auto page = cache_->pool()->bytes(mem::PageHandle::unpack(lease.pages.front()));
  if (!page) {  // somebody freed it by its handle
    cache_->release(lease.id);
    return nullptr;
  }
  const MutableBytes chunk = page->first(chunk_bytes_);
  const std::vector<std::uint64_t> sums = sums_of(lease.pages.front(), chunk);
  const auto extent = codec::stripe_extent(plan_, name->stripe);
  const codec::Frame frame{
      .payload_size_bytes = extent.size_bytes,
      .original_size_bytes = chunk_bytes_,
      .payload_checksum = sums[name->stripe],
      .identity = identity_,
      .key_digest = codec::xxh3_64(as_bytes(key.substr(0, prefix_.size() + kHexDigits))),
      .generation = codec::generation_of(sums),
      .stripe_index = static_cast<std::uint16_t>(name->stripe),
      .stripe_count = plan_.count};
  return std::make_shared<Lent>(cache_, lease.id, frame,
                                chunk.subspan(extent.offset, extent.size_bytes));
}

std::optional<Facts> ChunkValues::facts(std::string_view key, UnixMs /*now*/, bool use) {
  const auto name = read(key);
  if (!name) return std::nullopt;
  const One one(name->hash);
  if (use) {
    if (cache_->touch(one, Use::kCopied) == 0) return std::nullopt;
  } else {
    std::uint8_t state = 0;
    cache_->states(one, {&state, 1});
    if (state < static_cast<std::uint8_t>(cache::Known::kReady)) return std::nullopt;
  }
  const auto extent = codec::stripe_extent(plan_, name->stripe);
  return Facts{.size_bytes = codec::kFrameSizeBytes + extent.size_bytes};
}

std::uint64_t ChunkValues::scan(std::uint64_t cursor, std::size_t count, UnixMs /*now*/,
                                const Visit& visit) {
  std::vector<ChunkHash> hashes;
  const auto from = static_cast<std::uint32_t>(std::min<std::uint64_t>(cursor, UINT32_MAX));
  const std::uint32_t next = cache_->ready_from(from, std::max<std::size_t>(1, count), hashes);
  for (const ChunkHash& hash : hashes) visit(name_of(hash));
  return next;
}

ValuesUsage ChunkValues::usage() const {
  const auto stats = cache_->stats().index;
  const std::size_t stride = cache_->pool()->page_stride_bytes();
  return {.size_bytes = cache_->capacity() * stride,
          .used_bytes = (stats.ready + stats.writing) * stride,
          .value_bytes = stats.ready * chunk_bytes_,
          .keys = stats.ready,
          .evicted = stats.evictions};
}

void ChunkValues::sweep(UnixMs /*now*/) {
  if (changes_ == nullptr) return;
  std::vector<cache::Change> changes;
  std::vector<std::string> keys;
  const std::lock_guard lock(mutex_);
  for (;;) {
    changes.clear();
    const auto next = cache_->changes(told_, kChangesTold, changes);
    if (!next) {
      told_ = cache_->watch(kChangesKept);
      changes_->cleared();
      return;
    }
    told_ = *next;
    if (changes.empty()) return;
    keys.clear();
    for (const cache::Change& change : changes) keys.push_back(name_of(change.hash));
    changes_->changed(keys);
  }
}

}  // namespace kvferry::node
