// LFU: who was used least often goes first, and among equals who came to that count first.
//
// Chunks of one count share a bucket; buckets are chained by count. A use moves a chunk to the next
// bucket, so every call is O(1). There is a bucket for every chunk at most.

#include "cache/policy.hpp"

namespace kvferry::cache {
namespace {

struct Bucket {
  std::uint64_t uses;
  std::uint32_t fewer, more;  // neighbours in the chain; `more` also chains the free ones
  OrderList queue;
};

class Lfu final : public Policy {
 public:
  explicit Lfu(Entries& entries)
      : entries_(entries), buckets_(entries.capacity() + 1), bucket_of_(entries.capacity()) {}

  void admit(std::uint32_t slot) override {
    if (fewest_ == kNone || buckets_[fewest_].uses != 1) fewest_ = open(1, kNone, fewest_);
    enter(slot, fewest_);
  }

  void touch(std::uint32_t slot) override {
    const std::uint32_t at = bucket_of_[slot];
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

  void lift(std::uint32_t slot) override { buckets_[bucket_of_[slot]].queue.renew(slot); }
  std::uint32_t victim(std::size_t, int) override {
    return fewest_ == kNone ? kNone : buckets_[fewest_].queue.oldest();
  }
  void evicted(std::uint32_t slot) override { leave(slot); }
  void removed(std::uint32_t slot) override { leave(slot); }
  [[nodiscard]] std::size_t size_bytes() const override {
    return buckets_.size_bytes() + bucket_of_.size_bytes();
  }

 private:
  void enter(std::uint32_t slot, std::uint32_t bucket) {
    bucket_of_[slot] = bucket;
    buckets_[bucket].queue.push(slot);
  }

  void leave(std::uint32_t slot) {
    const std::uint32_t at = bucket_of_[slot];
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
    buckets_[at] = Bucket{uses, fewer, more, OrderList(entries_.all())};
    if (fewer != kNone) buckets_[fewer].more = at;
    if (more != kNone) buckets_[more].fewer = at;
    return at;
  }

  Entries& entries_;
  Zeroed<Bucket> buckets_;
  Zeroed<std::uint32_t> bucket_of_;  // by slot
  std::uint32_t fewest_ = kNone;
  std::uint32_t free_ = kNone;
  std::uint32_t opened_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_lfu(Entries& entries) { return std::make_unique<Lfu>(entries); }

}  // namespace kvferry::cache
