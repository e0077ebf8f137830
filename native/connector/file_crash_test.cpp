// Power cuts, simulated: the disk stops at any step, and what was not synced is lost, torn, or
// takes the place of what it replaced. Reopening must find right bytes or none.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "connector/file.hpp"
#include "connector/test_jobs.hpp"

namespace kvferry::connector {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSize = 9'000;
constexpr int kKeys = 2;
constexpr int kVersions = 2;  // each key is stored so often

using Content = std::optional<std::string>;

Content read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void write(const fs::path& path, const Content& content) {
  fs::remove(path);
  if (content) std::ofstream(path, std::ios::binary) << *content;
}

// The power goes before step number `cut`. It remembers what a disk may show afterwards.
class PowerCut final : public FileSteps {
 public:
  PowerCut(const TestDirectory& directory, int cut) : directory_(directory), cut_(cut) {}

  int before(Step step, const std::string& name) override {
    if (step == Step::kSync && steps_ < cut_) syncing_ = name;
    if (step == Step::kRename && steps_ < cut_) {
      // What had this name before, and whether what gets it is on the disk.
      history_[final_].push_back(read(directory_.file(final_)));
      synced_[final_] = syncing_ == name;
      named_[final_] = false;
    }
    if (step == Step::kSyncDirectory && steps_ < cut_) pending_directory_ = name;
    if (steps_++ < cut_) return 0;
    off_ = true;
    return EIO;
  }
  // The next SET is of this file.
  void expect(std::string final_name) { final_ = std::move(final_name); }
  void acknowledged() {
    if (!pending_directory_.empty()) named_[pending_directory_] = true;
    pending_directory_.clear();
  }
  [[nodiscard]] bool off() const { return off_; }

  // Leaves the files as a disk might have them.
  void damage(std::mt19937& random) {
    for (const auto& [name, earlier] : history_) {
      const fs::path path = directory_.file(name);
      Content content = read(path);
      if (!synced_[name] && content) tear(*content, earlier.back(), random);
      // A rename that was not synced may never have been; older ones count as done.
      if (!named_[name] && random() % 3 == 0) content = earlier.back();
      if (!synced_[name] && random() % 8 == 0) content.reset();
      write(path, content);
    }
  }

 private:
  static void tear(std::string& content, const Content& earlier, std::mt19937& random) {
    constexpr std::size_t kBlock = 4096;
    switch (random() % 4) {
      case 0:
        return;  // all of it made it
      case 1:
        content.resize(random() % 2 == 0 ? 0 : random() % content.size());
        return;
      default:
        break;
    }
    for (std::size_t at = 0; at < content.size(); at += kBlock) {
      const std::size_t count = std::min(kBlock, content.size() - at);
      const unsigned what = random() % 4;
      if (what == 0) content.replace(at, count, count, '\0');
      if (what == 1 && earlier && earlier->size() >= at + count) {
        content.replace(at, count, *earlier, at, count);  // the blocks of the file before
      }
    }
  }

  const TestDirectory& directory_;
  const int cut_;
  int steps_ = 0;
  bool off_ = false;
  std::string final_;
  std::string syncing_;
  std::string pending_directory_;
  std::map<std::string, std::vector<Content>> history_;
  std::map<std::string, bool> synced_;
  std::map<std::string, bool> named_;
};

class PowerCuts : public ::testing::TestWithParam<Fsync> {};

INSTANTIATE_TEST_SUITE_P(All, PowerCuts,
                         ::testing::Values(Fsync::kNever, Fsync::kData, Fsync::kFull));

TEST_P(PowerCuts, AfterAnyStepNothingWrongIsEverFound) {
  std::mt19937 random(20'260'701);
  int found = 0;
  int refused_values = 0;
  bool off = true;
  for (int cut = 0; off; ++cut) {
    for (int trial = 0; trial < 5; ++trial) {
      const TestDirectory directory;
      PowerCut power(directory, cut);
      std::map<int, unsigned> acknowledged;  // the last version that SET was OK for
      FileOptions options{.path = directory.path(),
                          .fsync = GetParam(),
                          .direct = Direct::kOff,
                          .ring = false,
                          .steps = &power};
      {
        // The first steps are those of opening; a store that cannot be opened has nothing wrong.
        auto opened = FileConnector::open(test_space(kSize), options);
        if (opened) {
          const Open store(std::move(opened));
          for (unsigned version = 1; version <= kVersions; ++version) {
            for (int key = 0; key < kKeys; ++key) {
              const std::string name = std::to_string(key);
              power.expect(file_name("p:" + name));
              if (set(*store, name, 10 * static_cast<unsigned>(key) + version) == "OK") {
                acknowledged[key] = version;
                power.acknowledged();
              }
            }
          }
        }
      }
      off = power.off();
      power.damage(random);
      options.steps = nullptr;
      const Open store(FileConnector::open(test_space(kSize), options));
      for (int key = 0; key < kKeys; ++key) {
        std::string value;
        const std::string status = get(*store, std::to_string(key), &value);
        std::set<unsigned> right;
        for (unsigned version = 1; version <= kVersions; ++version) {
          if (value == value_of(kSize, 10 * static_cast<unsigned>(key) + version)) {
            right.insert(version);
          }
        }
        if (status == "OK") {
          ++found;
          ASSERT_EQ(right.size(), 1u) << "wrong bytes after a cut before step " << cut;
        } else {
          refused_values += status == "CORRUPT" ? 1 : 0;
          ASSERT_TRUE(status == "MISS" || status == "CORRUPT") << status;
        }
        if (GetParam() == Fsync::kFull && acknowledged.contains(key)) {
          // What was acknowledged is there, unless a later SET had begun to replace it.
          ASSERT_EQ(status, "OK") << "lost after a cut before step " << cut;
          ASSERT_GE(*right.begin(), acknowledged[key]);
        }
        if (GetParam() != Fsync::kNever) {
          ASSERT_NE(status, "CORRUPT") << "it was synced before it got its name";
        }
      }
      for (const auto& entry : fs::directory_iterator(directory.file("tmp"))) {
        ASSERT_EQ(entry.path().extension(), ".owner") << "a leftover";
      }
      std::uint64_t bytes = 0;
      for (int key = 0; key < kKeys; ++key) {
        const fs::path path = directory.file(file_name("p:" + std::to_string(key)));
        if (fs::exists(path)) bytes += fs::file_size(path);
      }
      ASSERT_EQ(store->usage()->used_bytes, bytes);
    }
  }
  EXPECT_GT(found, 0);
  if (GetParam() == Fsync::kNever) {
    EXPECT_GT(refused_values, 0) << "the damage was none";
  }
}

}  // namespace
}  // namespace kvferry::connector
