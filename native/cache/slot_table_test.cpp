#include "cache/slot_table.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace kvferry::cache {
namespace {

// Few homes, the last cells among them, so that runs of cells are long and go around the end.
TEST(SlotTable, FindsWhatAMapFinds) {
  constexpr std::uint32_t kSlots = 200;
  std::mt19937_64 random(1);
  for (const std::uint64_t spread : {1ull, 3ull, 1ull << 31, 1ull << 32}) {
    SlotTable table(kSlots);
    std::vector<std::uint64_t> mixed_of(kSlots);
    std::map<std::uint32_t, std::uint64_t> model;
    for (int step = 0; step < 20'000; ++step) {
      const auto slot = static_cast<std::uint32_t>(random() % kSlots);
      if (model.contains(slot)) {
        table.erase(model[slot], slot);
        model.erase(slot);
      } else {
        // Counted down from the top of 32 bits, where the table ends.
        mixed_of[slot] = UINT32_MAX - random() % spread;
        table.insert(mixed_of[slot], slot);
        model[slot] = mixed_of[slot];
      }
      const auto probe = static_cast<std::uint32_t>(random() % kSlots);
      const std::uint32_t found =
          table.find(mixed_of[probe], [&](std::uint32_t candidate) { return candidate == probe; });
      ASSERT_EQ(found, model.contains(probe) ? probe : kNone) << "spread " << spread;
    }
  }
}

TEST(SlotTable, AsksOnlyAboutSlotsOfTheSameTag) {
  SlotTable table(4);
  table.insert(7, 0);
  table.insert(7, 1);
  table.insert(8, 2);
  std::vector<std::uint32_t> asked;
  EXPECT_EQ(table.find(7,
                       [&](std::uint32_t slot) {
                         asked.push_back(slot);
                         return false;
                       }),
            kNone);
  EXPECT_EQ(asked, (std::vector<std::uint32_t>{0, 1}));
}

TEST(SlotTable, AFullTableStillEndsASearch) {
  SlotTable table(1);
  table.insert(1, 0);
  EXPECT_EQ(table.find(2, [](std::uint32_t) { return true; }), kNone);
}

}  // namespace
}  // namespace kvferry::cache
