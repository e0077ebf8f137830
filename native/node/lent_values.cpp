#include "node/lent_values.hpp"

#include <mutex>
#include <utility>
#include <vector>

namespace kvferry::node {
namespace {

constexpr std::string_view kMark = "generation";

class Text final : public StoredValue {
 public:
  explicit Text(std::string text) : StoredValue(text.size()), text_(std::move(text)) {}

  [[nodiscard]] MutableBytes piece(std::size_t offset) const noexcept override {
    return MutableBytes(reinterpret_cast<std::byte*>(text_.data()), text_.size()).subspan(offset);
  }

 private:
  mutable std::string text_;  // nobody writes to what is lent
};

}  // namespace

Outcome LentValues::lend(std::shared_ptr<cache::ChunkCache> cache, const std::string& prefix,
                         std::uint64_t identity, std::size_t chunk_bytes) {
  auto values = ChunkValues::create(std::move(cache), prefix, identity, chunk_bytes, changes_);
  if (!values) return values.error();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [other, lent] : all_) {
      if (prefix.starts_with(other) || other.starts_with(prefix)) {
        return Error{Errc::kInvalidArgument,
                     "a cache with the prefix " + other + " is lent already"};
      }
    }
    all_.emplace(prefix, Lent{next_++, std::move(*values)});
  }
  // What was there before is told by nobody.
  if (changes_ != nullptr) changes_->cleared();
  return Done{};
}

bool LentValues::recall(const std::string& prefix) {
  {
    const std::lock_guard lock(mutex_);
    if (all_.erase(prefix) == 0) return false;
  }
  if (changes_ != nullptr) changes_->cleared();
  return true;
}

bool LentValues::mark(const std::string& prefix, const std::string& text, Nanos lent_until) {
  bool was_over = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(prefix);
    if (found == all_.end()) return false;
    was_over = found->second.until < monotonic_ns();
    found->second.mark = std::make_shared<Text>(text);
    found->second.until = lent_until;
  }
  // Readers were told that nothing is there.
  if (was_over && changes_ != nullptr) changes_->cleared();
  return true;
}

// No prefix begins like another, so the last one that is not behind the key is the only candidate.
LentValues::All::const_iterator LentValues::find(std::string_view key) const {
  auto found = all_.upper_bound(key);
  if (found == all_.begin() || !key.starts_with((--found)->first)) return all_.end();
  return found;
}

std::shared_ptr<ChunkValues> LentValues::of(std::string_view key) const {
  const std::shared_lock lock(mutex_);
  const auto found = find(key);
  if (found == all_.end()) return nullptr;
  const Lent& lent = found->second;
  return lent.until == kNoEnd || lent.until > monotonic_ns() ? lent.values : nullptr;
}

ValuePtr LentValues::mark_of(std::string_view key) const {
  if (!key.ends_with(kMark)) return nullptr;
  const std::shared_lock lock(mutex_);
  const auto found = find(key);
  const bool is_mark = found != all_.end() && key.size() == found->first.size() + kMark.size();
  return is_mark ? found->second.mark : nullptr;
}

ValuePtr LentValues::hold(std::string_view key, UnixMs now) {
  if (ValuePtr mark = mark_of(key)) return mark;
  const auto values = of(key);
  return values ? values->hold(key, now) : nullptr;
}

std::optional<Facts> LentValues::facts(std::string_view key, UnixMs now, bool use) {
  const auto values = of(key);
  return values ? values->facts(key, now, use) : std::nullopt;
}

// The cursor is the number of a cache, and behind it where to go on there. A cache that came
// during a scan has a higher number; one that went is passed over.
std::uint64_t LentValues::scan(std::uint64_t cursor, std::size_t count, UnixMs now,
                               const Visit& visit) {
  const auto number = static_cast<std::uint32_t>(cursor >> 32);
  std::uint64_t from = cursor & UINT32_MAX;
  std::shared_ptr<ChunkValues> values;
  std::uint32_t here = UINT32_MAX, next = UINT32_MAX;
  {
    const std::shared_lock lock(mutex_);
    for (const auto& [prefix, lent] : all_) {
      if (lent.number >= number && lent.number < here) {
        next = here;
        here = lent.number;
        values = lent.values;
      } else if (lent.number > here && lent.number < next) {
        next = lent.number;
      }
    }
  }
  if (!values) return 0;
  if (here != number) from = 0;
  from = values->scan(from, count, now, visit);
  if (from != 0) return std::uint64_t{here} << 32 | from;
  return next == UINT32_MAX ? 0 : std::uint64_t{next} << 32;
}

ValuesUsage LentValues::usage() const {
  const std::shared_lock lock(mutex_);
  ValuesUsage sum;
  for (const auto& [prefix, lent] : all_) {
    const ValuesUsage one = lent.values->usage();
    sum.size_bytes += one.size_bytes;
    sum.used_bytes += one.used_bytes;
    sum.value_bytes += one.value_bytes;
    sum.keys += one.keys;
    sum.evicted += one.evicted;
  }
  return sum;
}

void LentValues::sweep(UnixMs now) {
  std::vector<std::shared_ptr<ChunkValues>> all;
  {
    const std::shared_lock lock(mutex_);
    for (const auto& [prefix, lent] : all_) all.push_back(lent.values);
  }
  for (const auto& values : all) values->sweep(now);
}

}  // namespace kvferry::node
