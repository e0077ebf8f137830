#pragma once
// Policy: which chunk goes when there is no room. Each policy is one file, found by name.
//
// A policy holds the chunks that are ready, in queues of its own; the index asks it for a candidate
// and decides whether that one may go. It knows neither leases nor requests. What makes a policy
// leaf-first is lift(): after each request the index lifts its chunks from the last to the first,
// so that a parent is younger than its children and the oldest of a queue nearly always is a leaf.
//
// Threads: those of the index: one at a time. Nothing here allocates after construction.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/result.hpp"
#include "cache/entries.hpp"

namespace kvferry::cache {

class Policy {
 public:
  virtual ~Policy() = default;

  // A chunk that is not resident is wanted; room for it is made next. What is returned stands in
  // `mark` of its entry at admit(): policies remember there that they knew it from before.
  virtual std::uint8_t prepare(const ChunkHash&) { return 0; }
  // The chunk is ready.
  virtual void admit(std::uint32_t slot) = 0;
  // It was used again.
  virtual void touch(std::uint32_t slot) = 0;
  // It becomes the youngest of its queue, without having been used.
  virtual void lift(std::uint32_t slot) = 0;

  // Who should go, or kNone when nothing is ready; it stays in its queue until it is lifted, which
  // says that it cannot go, or leaves. `arriving` chunks have room already and are not admitted
  // yet. `passed` candidates for this room were lifted before: after some of one queue a policy
  // with several tries another.
  virtual std::uint32_t victim(std::size_t arriving, int passed) = 0;
  // It goes; the policy may remember its hash.
  virtual void evicted(std::uint32_t slot) = 0;
  // It was taken away; nothing is remembered.
  virtual void removed(std::uint32_t slot) = 0;

  [[nodiscard]] virtual std::size_t size_bytes() const { return 0; }

 protected:
  // Whether victim() should look into the other queue.
  static bool is_other_queues_turn(int passed) { return passed / kTriesInARow % 2 != 0; }

 private:
  static constexpr int kTriesInARow = 16;
};

using OrderList = SlotList<Entry, &Entry::order>;

// Names are those of policy_names(), in any case, with or without their hyphens.
// Fails with: kInvalidArgument for another name. `entries` outlives the policy.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, Entries& entries);

// "LRU, LFU, ..."
[[nodiscard]] std::string_view policy_names() noexcept;

std::unique_ptr<Policy> make_lru(Entries& entries);
std::unique_ptr<Policy> make_lfu(Entries& entries);
std::unique_ptr<Policy> make_fifo(Entries& entries);
std::unique_ptr<Policy> make_s3_fifo(Entries& entries);
std::unique_ptr<Policy> make_arc(Entries& entries);
std::unique_ptr<Policy> make_w_tiny_lfu(Entries& entries);

}  // namespace kvferry::cache
