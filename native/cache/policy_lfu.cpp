// LFU: who was used least often goes first, and among equals who came to that count first.
//
// Chunks of one count share a bucket; buckets are chained by count. A use moves a chunk to the next
// bucket, so that costs O(1). There is a bucket for every chunk at most. A chunk that is set aside
// leaves its bucket and keeps its count; on its way back it passes the buckets of lower counts.

#include "cache/policy.hpp"

namespace kvferry::cache {
namespace {

using Queue = SlotList<Entry, &Entry::order>;

struct Bucket {
  std::uint64_t uses;
  std::uint32_t fewer, more;  // neighbours in the chain; `more` also chains the free ones
  Queue queue;
};

class Lfu final : public Policy {
 public:
  explicit Lfu(Entries& entries) : entries_(entries), buckets_(entries.capacity() + 1) {}

  void admit(std::uint32_t slot) override { enter(slot, bucket_for(1)); }

  void touch(std::uint32_t slot, Use use) override {
    if (use == Use::kCopied) {
      lift(slot);
      return;
    }
    if (is_aside(slot)) {
      enter(slot, bucket_for(entries_[slot].place + 1));
      return;
    }
    const std::uint32_t at = bucket_of(slot);
    const std::uint64_t uses = buckets_[at].uses + 1;
    std::uint32_t next = buckets_[at].more;
    if (next == kNone || buckets_[next].uses != uses) {
      if (buckets_[at].queue.size() == 1) {
        buckets_[at].uses = uses;
        return;
      }
      next = open(uses, at, next);
    }
    leave(slot);
    enter(slot, next);
  }

  void lift(std::uint32_t slot) override {
    if (is_aside(slot)) {
      enter(slot, bucket_for(entries_[slot].place));
    } else {
      buckets_[bucket_of(slot)].queue.renew(slot);
    }
  }

  void bring_back(std::uint32_t slot) override {
    enter(slot, bucket_for(entries_[slot].place), /*as_oldest=*/true);
  }

  std::uint32_t victim(std::size_t) override {
    while (fewest_ != kNone) {
      const std::uint32_t slot = buckets_[fewest_].queue.oldest();
      if (evictable(entries_[slot])) return slot;
      const std::uint64_t uses = buckets_[fewest_].uses;
      leave(slot);
      entries_[slot].order = {kNone, kNone};
      entries_[slot].place = uses;
      entries_[slot].flags |= kAside;
    }
    return kNone;
  }

  void evicted(std::uint32_t slot) override { removed(slot); }
  void removed(std::uint32_t slot) override {
    if (!is_aside(slot)) leave(slot);
  }
  [[nodiscard]] std::size_t size_bytes() const override { return buckets_.size_bytes(); }

 private:
  // The `place` of an entry is its bucket, or when it is set aside its count.
  [[nodiscard]] bool is_aside(std::uint32_t slot) const {
    return (entries_[slot].flags & kAside) != 0;
  }
  [[nodiscard]] std::uint32_t bucket_of(std::uint32_t slot) const {
    return static_cast<std::uint32_t>(entries_[slot].place);
  }

  void enter(std::uint32_t slot, std::uint32_t bucket, bool as_oldest = false) {
    entries_[slot].flags &= static_cast<std::uint8_t>(~kAside);
    entries_[slot].place = bucket;
    Queue& queue = buckets_[bucket].queue;
    queue.insert(slot, as_oldest ? queue.oldest() : kNone);
  }

  std::uint32_t bucket_for(std::uint64_t uses) {
    std::uint32_t fewer = kNone, at = fewest_;
    while (at != kNone && buckets_[at].uses < uses) {
      fewer = at;
      at = buckets_[at].more;
    }
    if (at != kNone && buckets_[at].uses == uses) return at;
    return open(uses, fewer, at);
  }

  void leave(std::uint32_t slot) {
    const std::uint32_t at = bucket_of(slot);
    Bucket& bucket = buckets_[at];
    bucket.queue.remove(slot);
    if (bucket.queue.size() > 0) return;
    (bucket.fewer == kNone ? fewest_ : buckets_[bucket.fewer].more) = bucket.more;
    if (bucket.more != kNone) buckets_[bucket.more].fewer = bucket.fewer;
    bucket.more = free_;
    free_ = at;
  }

  // An empty bucket between two neighbours.
  std::uint32_t open(std::uint64_t uses, std::uint32_t fewer, std::uint32_t more) {
    std::uint32_t at = free_;
    if (at == kNone) {
      at = opened_++;
    } else {
      free_ = buckets_[at].more;
    }
    buckets_[at] = Bucket{uses, fewer, more, Queue(entries_.all())};
    (fewer == kNone ? fewest_ : buckets_[fewer].more) = at;
    if (more != kNone) buckets_[more].fewer = at;
    return at;
  }

  Entries& entries_;
  Zeroed<Bucket> buckets_;
  std::uint32_t fewest_ = kNone;
  std::uint32_t free_ = kNone;
  std::uint32_t opened_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_lfu(Entries& entries) { return std::make_unique<Lfu>(entries); }

}  // namespace kvferry::cache
