#include "node/value_store.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "node/state_file.hpp"
#include "node/test_store.hpp"

namespace kvferry::node {
namespace {

struct Heard final : Changes {
  void changed(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) text += key + " ";
  }
  void cleared() override { text += "ALL "; }
  std::string text;
};

TEST(ValueStore, WhatWasSetIsThereUntilItIsRemoved) {
  const auto store = test_store(8);
  const std::string value(10'000, 'v');  // three pages
  EXPECT_TRUE(put(*store, "a", value));
  EXPECT_TRUE(put(*store, "empty", ""));
  EXPECT_EQ(stored(*store, "a"), value);
  EXPECT_EQ(stored(*store, "empty"), "");
  EXPECT_EQ(store->usage().used_bytes, 4 * kTestPage);
  EXPECT_EQ(store->usage().value_bytes, value.size());
  EXPECT_TRUE(store->remove("a", 0));
  EXPECT_FALSE(store->remove("a", 0));
  EXPECT_EQ(stored(*store, "a"), "(none)");
  EXPECT_EQ(store->usage().used_bytes, kTestPage);
}

// What stands in front of a value in a reply is a few bytes: see kFirstByteAt.
TEST(ValueStore, ValuesBeginFarFromTheBordersOfMemoryPagesAndTakeNoMoreOfThem) {
  const auto store = test_store(16);
  for (const std::size_t size : {kTestPage, 3 * kTestPage, 3 * kTestPage - 1, 2 * kTestPage + 1}) {
    std::string value(size, '\0');
    for (std::size_t i = 0; i < size; ++i) value[i] = static_cast<char>(i * 31 + i / 251);
    const std::size_t pages = (size - 1) / kTestPage + 1;
    ASSERT_TRUE(put(*store, "a", value));
    EXPECT_EQ(store->usage().used_bytes, pages * kTestPage);
    const ValuePtr held = store->hold("a", 0);
    EXPECT_EQ(content(*held), value);
    const auto at = reinterpret_cast<std::uintptr_t>(held->piece(0).data()) % kTestPage;
    EXPECT_GE(at, kTestPage / 4);
    EXPECT_LE(at, kTestPage * 3 / 4);
    for (std::size_t offset = 0; offset < size; offset += 97) {  // from wherever a send() ended
      const MutableBytes piece = held->piece(offset);
      EXPECT_EQ(as_text(piece), std::string_view(value).substr(offset, piece.size()));
      EXPECT_FALSE(piece.empty());
    }
  }
}

TEST(ValueStore, OldestGoesFirstAndTheLimitHolds) {
  Heard heard;
  const auto store = test_store(4, &heard);
  for (const char* key : {"a", "b", "c", "d"}) EXPECT_TRUE(put(*store, key, key));
  EXPECT_EQ(stored(*store, "a"), "a");  // used
  heard.text.clear();
  EXPECT_TRUE(put(*store, "e", std::string(2 * kTestPage, 'e')));
  EXPECT_EQ(heard.text, "b c e ");
  EXPECT_EQ(stored(*store, "a"), "a");
  EXPECT_EQ(stored(*store, "b"), "(none)");
  EXPECT_EQ(store->usage().evicted, 2u);
  EXPECT_EQ(store->usage().used_bytes, store->usage().size_bytes);
}

TEST(ValueStore, WhatIsBeingSentKeepsItsBytesAndMakesNoRoom) {
  const auto store = test_store(2);
  EXPECT_TRUE(put(*store, "a", "first"));
  ValuePtr held = store->hold("a", 0);
  EXPECT_TRUE(put(*store, "a", "second"));  // replaced while it is sent
  EXPECT_EQ(content(*held), "first");
  EXPECT_TRUE(put(*store, "b", "third"));  // "second" goes, because nobody sends it
  EXPECT_EQ(stored(*store, "a"), "(none)");
  const ValuePtr also = store->hold("b", 0);
  EXPECT_FALSE(put(*store, "c", "no room"));
  EXPECT_EQ(store->usage().refused, 1u);
  held.reset();
  EXPECT_TRUE(put(*store, "c", "room"));
  EXPECT_EQ(content(*also), "third");
}

TEST(ValueStore, ValueLargerThanTheStoreIsTheCallersMistake) {
  const auto store = test_store(2);
  const auto value = store->reserve(2 * kTestPage + 1);
  ASSERT_FALSE(value.has_value());
  EXPECT_EQ(value.error().code, Errc::kInvalidArgument);
}

TEST(ValueStore, ExpiredIsGoneForReadersAndForSweeps) {
  Heard heard;
  const auto store = test_store(8, &heard);
  EXPECT_TRUE(put(*store, "a", "1", 0, {.expires = 100}));
  EXPECT_TRUE(put(*store, "b", "2", 0, {.expires = 200}));
  EXPECT_EQ(stored(*store, "a", 99), "1");
  heard.text.clear();
  EXPECT_EQ(stored(*store, "a", 100), "(none)");
  EXPECT_EQ(heard.text, "a ");
  EXPECT_TRUE(put(*store, "b", "3", 150));  // without an end
  store->sweep(1000);
  EXPECT_EQ(stored(*store, "b", 1000), "3");
  EXPECT_TRUE(put(*store, "b", "4", 1000, {.expires = 1001}));
  store->sweep(1001);
  EXPECT_EQ(store->usage().keys, 0u);
  EXPECT_EQ(store->usage().expired, 2u);
  EXPECT_FALSE(put(*store, "c", "x", 0, {.if_absent = true}) == false);
  EXPECT_FALSE(put(*store, "c", "y", 0, {.if_absent = true}));
}

TEST(ValueStore, ScanVisitsOnceWhatStaysAllTheTime) {
  const auto store = test_store(300);
  std::mt19937 random(7);
  for (int i = 0; i < 100; ++i) put(*store, "stays" + std::to_string(i), "x");
  std::multiset<std::string> seen;
  std::uint64_t cursor = 0;
  int step = 0;
  do {
    const std::string other = "other" + std::to_string(random() % 50);
    if (++step % 2 == 0) {
      store->remove(other, 0);
    } else {
      put(*store, other, "y");
    }
    cursor = store->scan(cursor, 1 + random() % 5, 0, [&](std::string_view key) {
      if (key.starts_with("stays")) seen.emplace(key);
    });
  } while (cursor != 0);
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 100u);
}

TEST(ValueStore, ScanEndsBehindTheLastKeyAndPassesFreePlaces) {
  const auto store = test_store(4000);
  for (int i = 0; i < 3000; ++i) put(*store, "k" + std::to_string(i), "x");
  for (int i = 0; i < 3000; ++i) {
    if (i != 500) store->remove("k" + std::to_string(i), 0);
  }
  std::vector<std::string> seen;
  EXPECT_EQ(store->scan(0, 10, 0, [&](std::string_view key) { seen.emplace_back(key); }), 0u);
  EXPECT_EQ(seen, std::vector<std::string>{"k500"});
  for (int i = 0; i < 3000; ++i) put(*store, "again" + std::to_string(i), "x");
  store->clear();
  EXPECT_EQ(store->scan(0, 10, 0, [](std::string_view) {}), 0u);
}

class EveryPolicy : public testing::TestWithParam<const char*> {};

TEST_P(EveryPolicy, AgreesWithAMapOnWhatIsThereAndItsBytes) {
  const auto store = test_store(40, nullptr, GetParam());
  std::map<std::string, std::string> last;  // what was stored under each key at last
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    const std::string key = "k" + std::to_string(random() % 60);
    const int what = static_cast<int>(random() % 10);
    if (what < 4) {
      const std::string text =
          key + std::string(random() % (3 * kTestPage), static_cast<char>('a' + i % 26));
      ASSERT_TRUE(put(*store, key, text));
      last[key] = text;
    } else if (what < 9) {
      const std::string found = stored(*store, key);
      if (found != "(none)") {
        ASSERT_EQ(found, last[key]);
      }
    } else {
      store->remove(key, 0);
      ASSERT_EQ(stored(*store, key), "(none)");
    }
  }
  EXPECT_GT(store->usage().evicted, 0u);
  store->clear();
  EXPECT_EQ(store->usage().used_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy,
                         testing::Values("LRU", "LFU", "FIFO", "S3-FIFO", "ARC", "W-TinyLFU"));

TEST(ValueStore, ReadersSeeWholeValuesWhileWritersEvict) {
  const auto store = test_store(24);
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0}, hits{0};
  const auto text = [](int key) { return std::string(2 * kTestPage + 5, static_cast<char>(key)); };
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3000; ++i) {
        const int key = 1 + (i * (t + 3)) % 30;
        put(*store, "k" + std::to_string(key), text(key));
      }
      over = true;
    });
    threads.emplace_back([&] {
      for (int i = 0; !over || i < 1000; ++i) {
        const int key = 1 + i % 30;
        const ValuePtr value = store->hold("k" + std::to_string(key), 0);
        if (value == nullptr) continue;
        ++hits;
        if (content(*value) != text(key)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 0);
  store->clear();
  EXPECT_EQ(store->usage().used_bytes, 0u);
}

// --- State --------------------------------------------------------------------------------------

class NodeState : public testing::Test {
 protected:
  NodeState() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = testing::TempDir() + "kvferry-state-" + info->name() + std::to_string(::getpid());
    std::filesystem::remove(path_);
  }
  ~NodeState() override { std::filesystem::remove(path_); }
  std::string path_;
};

TEST_F(NodeState, ComesBackOnceWithItsTimes) {
  const auto before = test_store(16);
  put(*before, "a", std::string(9000, 'a'));
  put(*before, "b", "", 0, {.expires = 500});
  put(*before, "c", "gone", 0, {.expires = 50});
  const auto saved = save_state(*before, path_, 100);
  ASSERT_TRUE(saved.has_value());
  EXPECT_EQ(*saved, 2u);

  const auto after = test_store(16);
  const auto loaded = load_state(*after, path_, 200);
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->values, 2u);
  EXPECT_EQ(stored(*after, "a", 200), std::string(9000, 'a'));
  EXPECT_EQ(after->facts("b", 200, false)->expires, 500);
  EXPECT_EQ(load_state(*after, path_, 200)->values, 0u);  // a second process finds nothing
}

TEST_F(NodeState, DamagedValuesAreLeftOut) {
  const auto before = test_store(16);
  for (const char* key : {"a", "b", "c"}) put(*before, key, std::string(5000, *key));
  ASSERT_TRUE(save_state(*before, path_, 0).has_value());
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8 + 28 + 1 + 5000 + 28 + 1 + 100);  // in the second value
    file.put('x');
  }
  const auto after = test_store(16);
  const auto loaded = load_state(*after, path_, 0);
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->values, 2u);
  EXPECT_EQ(loaded->left_out, 1u);
  EXPECT_EQ(stored(*after, "b"), "(none)");
  EXPECT_EQ(stored(*after, "c"), std::string(5000, 'c'));
}

TEST_F(NodeState, FileThatEndsEarlyGivesWhatWasWhole) {
  const auto before = test_store(16);
  put(*before, "a", std::string(5000, 'a'));
  put(*before, "b", std::string(5000, 'b'));
  ASSERT_TRUE(save_state(*before, path_, 0).has_value());
  std::filesystem::resize_file(path_, 8 + 28 + 1 + 5000 + 28 + 1 + 100);
  const auto after = test_store(16);
  EXPECT_EQ(load_state(*after, path_, 0)->values, 1u);
  EXPECT_EQ(after->usage().used_bytes, 2 * kTestPage);
}

TEST_F(NodeState, FileOfAnotherKindIsLeftAsItIs) {
  std::ofstream(path_) << "somebody's notes";
  const auto store = test_store(4);
  EXPECT_FALSE(load_state(*store, path_, 0).has_value());
  EXPECT_TRUE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace kvferry::node
