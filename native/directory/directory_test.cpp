#include "directory/directory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace kvferry::directory {
namespace {

using cache::ChunkHash;
using cache::Hashes;
using Numbers = std::vector<std::uint64_t>;

// Keeps the bytes that a view is made of.
struct Bytes {
  std::vector<ChunkHash> hashes;
  operator Hashes() const { return Hashes(std::as_bytes(std::span(hashes))); }  // NOLINT implicit
};

Bytes of(const Numbers& numbers) {
  Bytes bytes;
  for (const std::uint64_t number : numbers) bytes.hashes.push_back({number + 1, ~number});
  return bytes;
}

Bytes range(std::uint64_t begin, std::uint64_t end) {
  Numbers numbers;
  for (; begin < end; ++begin) numbers.push_back(begin);
  return of(numbers);
}

std::vector<std::pair<Directory::Seat, std::size_t>> lookup(const Directory& directory,
                                                            const Bytes& bytes) {
  std::vector<std::pair<Directory::Seat, std::size_t>> found;
  for (const auto& held : directory.lookup(bytes)) found.emplace_back(held.seat, held.chunks);
  return found;
}

using Found = std::vector<std::pair<Directory::Seat, std::size_t>>;

TEST(Directory, TheLongestPrefixComesFirst) {
  Directory directory;
  const auto one = *directory.open();
  const auto two = *directory.open();
  const auto three = *directory.open();
  directory.update(one, range(0, 3), {});
  directory.update(two, range(0, 10), {});
  directory.update(three, range(1, 10), {});  // without the root it is of no use
  EXPECT_EQ(lookup(directory, range(0, 12)), (Found{{two, 10}, {one, 3}}));
  directory.update(two, {}, of({2}));
  EXPECT_EQ(lookup(directory, range(0, 12)), (Found{{one, 3}, {two, 2}}));
}

TEST(Directory, ADroppedSeatIsGoneAndItsNumberIsNotTakenAgain) {
  Directory directory;
  const auto one = *directory.open();
  directory.update(one, range(0, 1'000), {});
  EXPECT_TRUE(directory.drop(one));
  EXPECT_FALSE(directory.drop(one));
  EXPECT_FALSE(directory.update(one, range(0, 3), {}));
  EXPECT_TRUE(lookup(directory, range(0, 3)).empty());
  EXPECT_EQ(directory.stats().entries, 0u);
  EXPECT_NE(*directory.open(), one);
  EXPECT_TRUE(lookup(directory, range(0, 3)).empty());
}

TEST(Directory, ASnapshotIsSeenAsAWholeWhenItIsFinished) {
  Directory directory;
  const auto seat = *directory.open();
  EXPECT_FALSE(directory.fill(seat, range(0, 4)));
  EXPECT_FALSE(directory.finish(seat));
  directory.update(seat, range(0, 10), {});
  ASSERT_TRUE(directory.begin(seat));
  ASSERT_TRUE(directory.fill(seat, range(0, 3)));
  EXPECT_EQ(lookup(directory, range(0, 12)), (Found{{seat, 10}}));
  ASSERT_TRUE(directory.begin(seat));  // the one before was broken off
  ASSERT_TRUE(directory.fill(seat, range(0, 2)));
  ASSERT_TRUE(directory.fill(seat, {}));
  ASSERT_TRUE(directory.finish(seat));
  EXPECT_EQ(lookup(directory, range(0, 12)), (Found{{seat, 2}}));
  EXPECT_EQ(directory.size(seat), 2u);
  EXPECT_FALSE(directory.fill(seat, range(0, 4)));
}

TEST(Directory, StatesSayWhichHashesASeatHolds) {
  Directory directory;
  const auto seat = *directory.open();
  directory.update(seat, of({1, 3}), {});
  std::vector<std::uint8_t> held(4, 9);
  directory.states(seat, range(0, 4), held);
  EXPECT_EQ(held, (std::vector<std::uint8_t>{0, 1, 0, 1}));
  directory.states(seat + 1, range(0, 4), held);
  EXPECT_EQ(held, (std::vector<std::uint8_t>{0, 0, 0, 0}));
}

TEST(Directory, AnswersAsListsOfWhatEachHoldsWould) {
  Directory directory;
  std::map<Directory::Seat, std::set<std::uint64_t>> model;
  std::map<Directory::Seat, std::set<std::uint64_t>> gathered;
  std::mt19937_64 random(11);
  std::uint64_t opened = 0;
  const auto some = [&](std::uint64_t most) {
    Numbers numbers;
    for (std::uint64_t left = random() % most; left > 0; --left) numbers.push_back(random() % 60);
    return numbers;
  };
  for (int step = 0; step < 20'000; ++step) {
    // One of the last dozen that were opened, or one that was not.
    const std::uint64_t oldest = opened < 12 ? 0 : opened - 12;
    const auto seat = static_cast<Directory::Seat>(oldest + random() % 13);
    const bool known = model.contains(seat);
    switch (random() % 12) {
      case 0:
        if (model.size() < 10) {
          model[*directory.open()];
          ++opened;
        }
        break;
      case 1:
        if (random() % 8 == 0) {
          ASSERT_EQ(directory.drop(seat), known);
          model.erase(seat);
          gathered.erase(seat);
        }
        break;
      case 2:
        ASSERT_EQ(directory.begin(seat), known);
        if (known) gathered[seat].clear();
        break;
      case 3: {
        const Numbers numbers = some(50);
        ASSERT_EQ(directory.fill(seat, of(numbers)), gathered.contains(seat));
        if (gathered.contains(seat)) gathered[seat].insert(numbers.begin(), numbers.end());
        break;
      }
      case 4:
        ASSERT_EQ(directory.finish(seat), gathered.contains(seat));
        if (gathered.contains(seat)) model[seat] = gathered.extract(seat).mapped();
        break;
      default: {
        const Numbers added = some(30);
        const Numbers removed = some(20);
        ASSERT_EQ(directory.update(seat, of(added), of(removed)), known);
        if (!known) break;
        model[seat].insert(added.begin(), added.end());
        for (const std::uint64_t number : removed) model[seat].erase(number);
      }
    }
    Numbers prompt = some(12);
    Found expected;
    std::size_t entries = 0;
    for (const auto& [number, held] : model) {
      const auto end =
          std::ranges::find_if(prompt, [&](std::uint64_t n) { return !held.contains(n); });
      if (end != prompt.begin()) expected.emplace_back(number, end - prompt.begin());
      entries += held.size();
    }
    std::ranges::stable_sort(expected, std::greater{}, &Found::value_type::second);
    ASSERT_EQ(lookup(directory, of(prompt)), expected);
    ASSERT_EQ(directory.stats().entries, entries);
    ASSERT_EQ(directory.stats().seats, model.size());
  }
}

TEST(Directory, LookupsSeeWholeSnapshotsWhileOthersChangeAndDrop) {
  Directory directory;
  const auto steady = *directory.open();
  const auto renewed = *directory.open();
  const Bytes prompt = range(0, 64);
  directory.update(steady, prompt, {});
  directory.update(renewed, prompt, {});
  std::atomic<bool> ended{false};  // set by this thread; relaxed: it orders nothing
  std::thread renewing([&] {
    for (int round = 0; round < 200; ++round) {
      directory.begin(renewed);
      for (std::uint64_t at = 0; at < 64; at += 8) directory.fill(renewed, range(at, at + 8));
      directory.finish(renewed);
    }
  });
  std::thread coming([&] {
    while (!ended.load(std::memory_order_relaxed)) {
      const auto seat = *directory.open();
      directory.update(seat, range(0, 600), range(0, 300));
      directory.drop(seat);
    }
  });
  std::size_t seen = 0;
  for (int round = 0; round < 2'000; ++round) {
    for (const auto& [seat, chunks] : lookup(directory, prompt)) {
      if (seat != steady && seat != renewed) continue;
      EXPECT_EQ(chunks, 64u);
      ++seen;
    }
  }
  EXPECT_EQ(seen, 4'000u);
  renewing.join();
  ended.store(true, std::memory_order_relaxed);
  coming.join();
}

}  // namespace
}  // namespace kvferry::directory
