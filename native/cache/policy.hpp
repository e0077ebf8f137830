#pragma once
// Policy: which chunk goes when there is no room. Each policy is one file, found by name.
//
// A policy holds the chunks that are ready, in queues of its own, and names only those that are
// evictable(). One that is in the way is set aside by its queue; whoever makes it evictable again
// says so. That is what makes every policy leaf-first: a parent whose turn it was comes back when
// its last child has gone, as the next to go.
//
// Threads: those of the index: one at a time. Nothing here allocates after construction.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "cache/entries.hpp"

namespace kvferry::cache {

// A copy for another cache says that a chunk is wanted, but not that it will be wanted here again:
// it makes the chunk young, as far as use does, and is not counted by policies that count.
enum class Use : std::uint8_t { kHere, kCopied };

class Policy {
 public:
  virtual ~Policy() = default;

  // A chunk that is not resident is wanted; room for it is made next. What is returned stands in
  // `mark` of its entry at admit(): policies remember there that they knew it from before.
  virtual std::uint8_t prepare(const ChunkHash&) { return 0; }
  // The chunk is ready.
  virtual void admit(std::uint32_t slot) = 0;
  // It was used again.
  virtual void touch(std::uint32_t slot, Use use) = 0;
  // It becomes the youngest of its queue, without having been used: a claim on it ended that had
  // outlasted its turn.
  virtual void lift(std::uint32_t slot) = 0;
  // Nothing follows it any more. Requires: it is evictable and was set aside.
  virtual void bring_back(std::uint32_t slot) = 0;

  // Who should go, or kNone when nobody may. `arriving` chunks have room already and are not
  // admitted yet.
  virtual std::uint32_t victim(std::size_t arriving) = 0;
  // It goes; the policy may remember its hash.
  virtual void evicted(std::uint32_t slot) = 0;
  // It was taken away; nothing is remembered.
  virtual void removed(std::uint32_t slot) = 0;

  [[nodiscard]] virtual std::size_t size_bytes() const { return 0; }
};

// A new policy is a file with its make_*(), and has its two lines here. Settings, commands and
// messages, those in Python too, take the names from this table.
std::unique_ptr<Policy> make_lru(Entries& entries);
std::unique_ptr<Policy> make_lfu(Entries& entries);
std::unique_ptr<Policy> make_fifo(Entries& entries);
std::unique_ptr<Policy> make_s3_fifo(Entries& entries);
std::unique_ptr<Policy> make_arc(Entries& entries);
std::unique_ptr<Policy> make_w_tiny_lfu(Entries& entries);

struct NamedPolicy {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(Entries&);
};

inline constexpr std::array kPolicies = {
    NamedPolicy{"LRU", &make_lru},   NamedPolicy{"LFU", &make_lfu},
    NamedPolicy{"FIFO", &make_fifo}, NamedPolicy{"S3-FIFO", &make_s3_fifo},
    NamedPolicy{"ARC", &make_arc},   NamedPolicy{"W-TinyLFU", &make_w_tiny_lfu},
};

// Names may be in any case, with or without their hyphens.
// Fails with: kInvalidArgument for another name. `entries` outlives the policy.
Result<std::unique_ptr<Policy>> make_policy(std::string_view name, Entries& entries);

// "LRU, LFU, ..."
[[nodiscard]] std::string policy_names();

}  // namespace kvferry::cache
