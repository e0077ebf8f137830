// Each policy in plain order against a model of the textbook: the same hits, block by block.

#include "cache/policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cache/index.hpp"
#include "cache/test_requests.hpp"

namespace kvferry::cache {
namespace {

using Trace = std::vector<std::uint64_t>;

// Few are popular, many are not, and popularity moves on; with a scan in between.
Trace skewed_trace(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  Trace trace;
  std::uint64_t scanned = 1'000'000;
  while (trace.size() < count) {
    const double u = static_cast<double>(random() % 1'000'000 + 1) / 1e6;
    trace.push_back(static_cast<std::uint64_t>(std::pow(u, 3) * 2000) + trace.size() / 4000 * 300);
    if (random() % 1000 == 0) {
      for (int i = 0; i < 60; ++i) trace.push_back(scanned++);
    }
  }
  return trace;
}

// Says for each number whether it was there.
using Model = std::function<bool(std::uint64_t)>;

Model lru_model(std::size_t capacity, bool renew) {
  return [capacity, renew, queue = std::list<std::uint64_t>()](std::uint64_t x) mutable {
    const auto at = std::ranges::find(queue, x);
    if (at != queue.end()) {
      if (renew) queue.splice(queue.begin(), queue, at);
      return true;
    }
    if (queue.size() == capacity) queue.pop_back();
    queue.push_front(x);
    return false;
  };
}

Model lfu_model(std::size_t capacity) {
  struct Seat {
    std::uint64_t uses, since;
  };
  return [capacity, clock = std::uint64_t{0},
          seats = std::map<std::uint64_t, Seat>()](std::uint64_t x) mutable {
    ++clock;
    if (const auto at = seats.find(x); at != seats.end()) {
      at->second = {at->second.uses + 1, clock};
      return true;
    }
    if (seats.size() == capacity) {
      seats.erase(std::ranges::min_element(seats, {}, [](const auto& seat) {
        return std::pair(seat.second.uses, seat.second.since);
      }));
    }
    seats[x] = {1, clock};
    return false;
  };
}

// Figure 4 of the paper, with its names.
class ArcModel {
 public:
  explicit ArcModel(std::size_t capacity) : c_(static_cast<double>(capacity)) {}

  bool operator()(std::uint64_t x) {
    if (drop(t1_, x) || drop(t2_, x)) {
      t2_.push_front(x);
      return true;
    }
    if (const double ratio = size(b2_) / std::max(1.0, size(b1_)); contains(b1_, x)) {
      p_ = std::min(c_, p_ + std::max(1.0, ratio));
      drop(b1_, x);
      replace(false);
      t2_.push_front(x);
    } else if (const double inverse = size(b1_) / std::max(1.0, size(b2_)); contains(b2_, x)) {
      p_ = std::max(0.0, p_ - std::max(1.0, inverse));
      drop(b2_, x);
      replace(true);
      t2_.push_front(x);
    } else {
      if (size(t1_) + size(b1_) == c_) {
        if (size(t1_) < c_) {
          b1_.pop_back();
          replace(false);
        } else {
          t1_.pop_back();
        }
      } else if (size(t1_) + size(t2_) + size(b1_) + size(b2_) >= c_) {
        if (size(t1_) + size(t2_) + size(b1_) + size(b2_) >= 2 * c_) b2_.pop_back();
        replace(false);
      }
      t1_.push_front(x);
    }
    return false;
  }

 private:
  using Queue = std::deque<std::uint64_t>;
  static double size(const Queue& queue) { return static_cast<double>(queue.size()); }
  static bool contains(const Queue& queue, std::uint64_t x) {
    return std::ranges::find(queue, x) != queue.end();
  }
  static bool drop(Queue& queue, std::uint64_t x) { return std::erase(queue, x) > 0; }
  void replace(bool in_b2) {
    if (size(t1_) + size(t2_) < c_) return;
    const bool once = !t1_.empty() && (size(t1_) > p_ || (in_b2 && size(t1_) == p_));
    Queue& from = once || t2_.empty() ? t1_ : t2_;
    (&from == &t1_ ? b1_ : b2_).push_front(from.back());
    from.pop_back();
  }

  double c_;
  double p_ = 0;
  Queue t1_, t2_, b1_, b2_;
};

std::unique_ptr<Index> make_index(std::size_t capacity, const char* policy, bool leaf_first) {
  auto index = Index::create(capacity, policy, leaf_first);
  EXPECT_TRUE(index.has_value());
  return std::move(*index);
}

// Whether it was there; it is now.
bool access(Index& index, std::uint64_t number) {
  const Request request{number};
  std::vector<ChunkRef> refs;
  std::vector<std::uint32_t> indices;
  if (index.touch_any(request) == 1) return true;
  EXPECT_EQ(index.reserve(request, 0, refs, indices), 0u);
  EXPECT_EQ(index.commit(refs), 1u);
  return false;
}

void expect_same(const char* policy, std::size_t capacity, Model model) {
  const auto index = make_index(capacity, policy, /*leaf_first=*/false);
  const Trace trace = skewed_trace(capacity, 20'000);
  std::size_t hits = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const bool expected = model(trace[i]);
    ASSERT_EQ(access(*index, trace[i]), expected) << policy << " of " << capacity << " at " << i;
    hits += expected;
  }
  EXPECT_GT(hits, 100u);
}

TEST(Policy, LruFifoLfuAndArcAreThoseOfTheBooks) {
  for (const std::size_t capacity : {1u, 7u, 150u, 600u}) {
    expect_same("LRU", capacity, lru_model(capacity, true));
    expect_same("FIFO", capacity, lru_model(capacity, false));
    expect_same("LFU", capacity, lfu_model(capacity));
    expect_same("ARC", capacity, ArcModel(capacity));
  }
}

double hit_rate(const char* policy, std::size_t capacity, const Trace& trace) {
  const auto index = make_index(capacity, policy, false);
  std::size_t hits = 0;
  for (const std::uint64_t number : trace) hits += access(*index, number);
  return static_cast<double>(hits) / static_cast<double>(trace.size());
}

// Popular ones between scans as long as the cache: what these two are for.
TEST(Policy, AScanDoesNotWashOutWhatIsUsed) {
  Trace trace;
  std::uint64_t scanned = 1'000'000;
  for (int round = 0; round < 60; ++round) {
    for (int twice = 0; twice < 2; ++twice) {
      for (std::uint64_t hot = 0; hot < 40; ++hot) trace.push_back(hot);
    }
    for (int i = 0; i < 120; ++i) trace.push_back(scanned++);
  }
  const double lru = hit_rate("LRU", 100, trace);
  for (const char* policy : {"S3-FIFO", "ARC", "W-TinyLFU", "LFU"}) {
    EXPECT_GT(hit_rate(policy, 100, trace), lru + 0.15) << policy;
  }
}

// All that was popular is over: who counts uses must let go of it.
TEST(Policy, YesterdaysFavouritesLeave) {
  for (const char* policy : {"LRU", "FIFO", "S3-FIFO", "ARC", "W-TinyLFU"}) {
    const auto index = make_index(50, policy, false);
    for (int round = 0; round < 20; ++round) {
      for (std::uint64_t old = 0; old < 50; ++old) access(*index, old);
    }
    std::size_t hits = 0;
    for (int round = 0; round < 200; ++round) {
      for (std::uint64_t fresh = 100; fresh < 140; ++fresh) hits += access(*index, fresh);
    }
    EXPECT_GT(hits, 4'000u) << policy;
  }
}

TEST(Policy, NamesAreFoundInAnyCaseWithAndWithoutHyphens) {
  Entries entries(4);
  for (const char* name : {"LRU", "lfu", "Fifo", "S3-FIFO", "s3fifo", "arc", "W-TinyLFU",
                           "wtinylfu", "WTinyLFU", "w-tinylfu"}) {
    EXPECT_TRUE(make_policy(name, entries).has_value()) << name;
  }
  for (const char* name : {"", "LRU2", "SIEVE", "-"}) {
    const auto made = make_policy(name, entries);
    ASSERT_FALSE(made.has_value()) << name;
    EXPECT_NE(made.error().context.find("LRU, LFU, FIFO, S3-FIFO, ARC, W-TinyLFU"),
              std::string::npos);
  }
}

TEST(Policy, AMillionChunksFitIn160BytesEach) {
  constexpr std::size_t kCapacity = 1'000'000;
  for (const char* policy : kAllPolicies) {
    EXPECT_LE(make_index(kCapacity, policy, true)->size_bytes(), 160 * kCapacity) << policy;
  }
}

}  // namespace
}  // namespace kvferry::cache
