// Leaf-first, however a prefix is used: whole, chunk by chunk, in any order, by leases of peers.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "cache/index.hpp"
#include "cache/test_requests.hpp"

namespace kvferry::cache {
namespace {

using Numbers = std::vector<std::uint64_t>;
// Whoever reads chunk by chunk calls this for each part of his request.
using Read = std::function<void(const Numbers&)>;

constexpr std::size_t kLength = 40;  // chunks of a document
constexpr std::uint64_t kOld = 97, kNew = 12;

Numbers document(std::uint64_t number) {
  Numbers chunks;
  for (std::size_t i = 0; i < kLength; ++i) chunks.push_back(number * 1000 + i);
  return chunks;
}

std::unique_ptr<Index> make_index(std::size_t capacity, const char* policy) {
  return std::move(*Index::create(capacity, policy, /*leaf_first=*/true));
}

void store(Index& index, const Numbers& chunks) {
  std::vector<ChunkRef> refs;
  std::vector<std::uint32_t> indices;
  index.reserve(Request(chunks), 0, refs, indices);
  index.commit(refs);
}

void read_one_by_one(Numbers chunks, const Read& read) {
  for (const std::uint64_t chunk : chunks) read({chunk});
}

// The documents 1 to `count`, read in one of these ways.
const std::map<std::string, std::function<void(std::uint64_t count, const Read&)>> kWays = {
    {"not at all", [](std::uint64_t, const Read&) {}},
    {"whole",
     [](std::uint64_t count, const Read& read) {
       for (std::uint64_t d = 1; d <= count; ++d) read(document(d));
     }},
    {"forward",
     [](std::uint64_t count, const Read& read) {
       for (std::uint64_t d = 1; d <= count; ++d) read_one_by_one(document(d), read);
     }},
    {"backward",
     [](std::uint64_t count, const Read& read) {
       for (std::uint64_t d = 1; d <= count; ++d) {
         Numbers chunks = document(d);
         std::ranges::reverse(chunks);
         read_one_by_one(chunks, read);
       }
     }},
    {"shuffled",
     [](std::uint64_t count, const Read& read) {
       std::mt19937_64 random(7);
       for (std::uint64_t d = 1; d <= count; ++d) {
         Numbers chunks = document(d);
         std::ranges::shuffle(chunks, random);
         read_one_by_one(chunks, read);
       }
     }},
    {"in windows",
     [](std::uint64_t count, const Read& read) {
       for (std::uint64_t d = 1; d <= count; ++d) {
         const Numbers chunks = document(d);
         for (std::size_t at = 0; at < kLength; at += 8) {
           const auto begin = chunks.begin() + static_cast<std::ptrdiff_t>(at);
           read(Numbers(begin, begin + 8));
         }
       }
     }},
    {"interleaved",
     [](std::uint64_t count, const Read& read) {
       for (std::size_t i = 0; i < kLength; ++i) {
         for (std::uint64_t d = 1; d <= count; ++d) read({document(d)[i]});
       }
     }},
};

Read lease_of(Index& index, Use how) {
  return [&index, how](const Numbers& chunks) {
    std::vector<ChunkRef> refs;
    index.acquire(Request(chunks), refs, how);
    EXPECT_EQ(refs.size(), chunks.size());
    index.release(refs);
  };
}

Read touch_of(Index& index) {
  return
      [&index](const Numbers& chunks) { EXPECT_EQ(index.touch(Request(chunks)), chunks.size()); };
}

std::vector<std::size_t> left_of_new_documents(Index& index) {
  for (std::uint64_t d = 1; d <= kNew; ++d) store(index, document(kOld + d));
  std::vector<std::size_t> left;
  for (std::uint64_t d = 1; d <= kNew; ++d) {
    left.push_back(index.lookup(Request(document(kOld + d))).ready);
  }
  return left;
}

TEST(LeafFirst, NewDocumentsStayWhenPeersHaveCopiedOlderOnes) {
  for (const char* policy : kAllPolicies) {
    for (const auto& [name, way] : kWays) {
      const auto index = make_index(4096, policy);
      for (std::uint64_t d = 1; d <= kOld; ++d) store(*index, document(d));
      way(kOld, lease_of(*index, Use::kCopied));
      EXPECT_EQ(left_of_new_documents(*index), std::vector<std::size_t>(kNew, kLength))
          << policy << " read " << name;
    }
  }
}

// LFU and ARC keep what was used twice and let newcomers go, which is what they are for.
TEST(LeafFirst, NewDocumentsStayWhenOlderOnesWereUsed) {
  for (const char* policy : {"LRU", "FIFO", "S3-FIFO", "W-TinyLFU"}) {
    for (const auto& [name, way] : kWays) {
      for (const bool leased : {true, false}) {
        const auto index = make_index(4096, policy);
        for (std::uint64_t d = 1; d <= kOld; ++d) store(*index, document(d));
        way(kOld, leased ? lease_of(*index, Use::kHere) : touch_of(*index));
        EXPECT_EQ(left_of_new_documents(*index), std::vector<std::size_t>(kNew, kLength))
            << policy << " read " << name;
      }
    }
  }
}

// All that there is, in the order in which it would go.
std::vector<std::uint64_t> all_victims(Index& index) {
  std::vector<ChunkHash> hashes;
  index.evict(index.capacity(), hashes);
  std::vector<std::uint64_t> numbers;
  for (const ChunkHash& hash : hashes) numbers.push_back(hash.low);
  return numbers;
}

TEST(LeafFirst, InWhateverOrderADocumentIsReadTheSameChunksGo) {
  constexpr std::uint64_t kRead = 20, kUnread = 10;
  for (const char* policy : kAllPolicies) {
    for (const bool leased : {true, false}) {
      std::vector<std::uint64_t> wanted;
      for (const char* name :
           {"whole", "forward", "backward", "shuffled", "in windows", "interleaved"}) {
        const auto index = make_index((kRead + kUnread) * kLength, policy);
        for (std::uint64_t d = 1; d <= kRead + kUnread; ++d) store(*index, document(d));
        kWays.at(name)(kRead, leased ? lease_of(*index, Use::kHere) : touch_of(*index));
        const auto victims = all_victims(*index);
        EXPECT_EQ(victims.size(), index->capacity());
        if (wanted.empty()) wanted = victims;
        EXPECT_EQ(victims, wanted) << policy << " read " << name;
      }
    }
  }
}

// The same for prefixes that branch, against a model. A chunk is as young as its last use, or as
// the child that left it last, if that was younger; the oldest without children goes.
class Model {
 public:
  explicit Model(bool renewed_by_use) : renewed_by_use_(renewed_by_use) {}

  void store(const Numbers& path) {
    for (std::size_t i = path.size(); i-- > 0;) {
      if (ages_.contains(path[i])) continue;
      ages_[path[i]] = ++clock_;
      parents_[path[i]] = i > 0 ? path[i - 1] : 0;
      ++children_[parents_[path[i]]];
    }
  }
  void use(const Numbers& chunks) {
    for (std::size_t i = chunks.size(); i-- > 0;) {
      if (renewed_by_use_) ages_.at(chunks[i]) = ++clock_;
    }
  }
  std::uint64_t evict() {
    std::uint64_t victim = 0;
    for (const auto& [chunk, age] : ages_) {
      if (children_[chunk] == 0 && (victim == 0 || age < ages_.at(victim))) victim = chunk;
    }
    const std::uint64_t age = ages_.at(victim);
    ages_.erase(victim);
    --children_[parents_.at(victim)];
    const auto parent = ages_.find(parents_.at(victim));
    if (parent != ages_.end()) parent->second = std::max(parent->second, age);
    return victim;
  }
  [[nodiscard]] bool holds(std::uint64_t chunk) const { return ages_.contains(chunk); }
  [[nodiscard]] std::size_t size() const { return ages_.size(); }

 private:
  const bool renewed_by_use_;
  std::map<std::uint64_t, std::uint64_t> ages_, parents_, children_;
  std::uint64_t clock_ = 0;
};

Numbers path_to(std::uint64_t node) {
  Numbers path;
  for (; node != 0; node = node < 3 ? 0 : node / 3) path.insert(path.begin(), node);
  return path;
}

TEST(LeafFirst, WhoWasUsedLongestAgoGoesFirstAlsoWherePrefixesBranch) {
  constexpr std::uint64_t kNodes = 250;
  constexpr std::size_t kCapacity = 60;
  for (const char* policy : {"LRU", "FIFO"}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      std::mt19937_64 random(seed);
      const auto index = make_index(kCapacity, policy);
      Model model(policy == std::string("LRU"));
      for (int step = 0; step < 400; ++step) {
        Numbers path = path_to(1 + random() % (kNodes - 1));
        while (model.size() + path.size() > kCapacity || random() % 4 == 0) {
          if (model.size() == 0) break;
          std::vector<ChunkHash> victims;
          index->evict(1, victims);
          ASSERT_EQ(victims.size(), 1u);
          ASSERT_EQ(victims.front().low, model.evict()) << policy << " " << seed << " " << step;
        }
        if (random() % 2 == 0) {
          store(*index, path);
          model.store(path);
          continue;
        }
        std::erase_if(path, [&](std::uint64_t chunk) { return !model.holds(chunk); });
        if (random() % 2 == 0) std::ranges::shuffle(path, random);
        const bool whole = random() % 3 == 0 && std::ranges::is_sorted(path);
        const Read read = random() % 2 == 0 ? touch_of(*index) : lease_of(*index, Use::kHere);
        if (whole) {
          read(path);
          model.use(path);
        } else {
          if (!path.empty()) path.resize(1 + random() % path.size());
          for (const std::uint64_t chunk : path) {
            read({chunk});
            model.use({chunk});
          }
        }
      }
    }
  }
}

// Its turn came while it was leased, so the end of the lease is its last use.
TEST(LeafFirst, WhatALeaseKeptIsNotTheNextToGoWhenTheLeaseEnds) {
  for (const char* policy : kAllPolicies) {
    const auto index = make_index(8, policy);
    store(*index, {1, 2});
    store(*index, {3, 4});
    std::vector<ChunkRef> refs, waiting;
    std::vector<std::uint32_t> indices;
    index->acquire(Request{1, 2}, refs);
    std::vector<ChunkHash> victims;
    index->evict(8, victims);
    EXPECT_EQ(victims, (std::vector{hash_of(4), hash_of(3)})) << policy;
    store(*index, {5, 6});
    index->release(refs);
    victims.clear();
    index->evict(8, victims);
    EXPECT_EQ(victims.size(), 4u) << policy;
    EXPECT_LT(std::ranges::find(victims, hash_of(2)), std::ranges::find(victims, hash_of(1)));
    EXPECT_LT(std::ranges::find(victims, hash_of(6)), std::ranges::find(victims, hash_of(5)));
    if (policy == std::string("LRU")) {
      EXPECT_EQ(victims.front(), hash_of(6));
    }
  }
}

// A store that fails leaves the chunk in front of it where it was. (W-TinyLFU may take newcomers.)
TEST(LeafFirst, AParentThatWasInTheWayIsTheNextToGoWhenItsChildIsGone) {
  for (const char* policy : {"LRU", "LFU", "FIFO", "S3-FIFO", "ARC"}) {
    const auto index = make_index(4, policy);
    store(*index, {1});
    store(*index, {2});
    std::vector<ChunkRef> refs;
    std::vector<std::uint32_t> indices;
    index->reserve(Request{1, 3}, 0, refs, indices);
    std::vector<ChunkHash> victims;
    index->evict(1, victims);
    EXPECT_EQ(victims, (std::vector{hash_of(2)})) << policy;
    store(*index, {4});
    index->abort(refs);
    victims.clear();
    index->evict(1, victims);
    EXPECT_EQ(victims, (std::vector{hash_of(1)})) << policy;
  }
}

}  // namespace
}  // namespace kvferry::cache
