#include "connector/file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "connector/test_jobs.hpp"

namespace kvferry::connector {
namespace {

namespace fs = std::filesystem;
using codec::FrameFault;

constexpr std::size_t kSize = 10'000;  // no whole blocks

Open open(const TestDirectory& directory, FileOptions options = {}, std::size_t size = kSize,
          unsigned identity = 1, const std::string& prefix = "p:") {
  options.path = directory.path();
  return Open(FileConnector::open(test_space(size, identity, prefix), options));
}

fs::path file_of(const TestDirectory& directory, const std::string& key) {
  return directory.file(file_name("p:" + key));
}

void flip(const fs::path& path, std::size_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const auto byte = static_cast<char>(file.get() ^ 4);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

struct Mode {
  const char* name;
  Direct direct;
  bool ring;
  Fsync fsync;
};

class FileModes : public ::testing::TestWithParam<Mode> {
 protected:
  static FileOptions options() {
    return {.fsync = GetParam().fsync, .direct = GetParam().direct, .ring = GetParam().ring};
  }
};

INSTANTIATE_TEST_SUITE_P(All, FileModes,
                         ::testing::Values(Mode{"ring", Direct::kAuto, true, Fsync::kNever},
                                           Mode{"threads", Direct::kAuto, false, Fsync::kData},
                                           Mode{"buffered", Direct::kOff, false, Fsync::kFull},
                                           Mode{"full", Direct::kAuto, true, Fsync::kFull}),
                         [](const auto& mode) { return mode.param.name; });

TEST_P(FileModes, EverySizeAndEveryPlaceInMemory) {
  const TestDirectory directory;
  for (const std::size_t size : {std::size_t{1}, std::size_t{511}, std::size_t{4095},
                                 std::size_t{4096}, std::size_t{4097}, std::size_t{1048577}}) {
    const Open store = open(directory, options(), size);
    for (const std::size_t shift : {0u, 1u, 512u}) {
      const std::string key = std::to_string(size) + "-" + std::to_string(shift);
      EXPECT_EQ(get(*store, key), "MISS");
      EXPECT_EQ(set(*store, key, 1, shift), "OK");
      expect_value(*store, key, 1, shift);
      expect_value(*store, key, 1, 3);
      EXPECT_EQ(fs::file_size(file_of(directory, key)), file_size(size, false));
    }
  }
}

TEST_P(FileModes, WhatWasStoredIsThereAfterReopening) {
  const TestDirectory directory;
  {
    const Open store = open(directory, options());
    for (unsigned key = 0; key < 20; ++key) EXPECT_EQ(set(*store, std::to_string(key), key), "OK");
    EXPECT_EQ(set(*store, "7", 99), "OK");
    EXPECT_EQ(run(*store, make_job({.verb = Verb::kDelete}, {"3", "3"})), "OK MISS");
    EXPECT_EQ(store->usage()->used_bytes, 19 * file_size(kSize, false));
  }
  const Open store = open(directory, options());
  EXPECT_EQ(store->usage()->used_bytes, 19 * file_size(kSize, false));
  EXPECT_EQ(store->usage()->keys, 19u);
  for (unsigned key = 0; key < 20; ++key) {
    if (key != 3) expect_value(*store, std::to_string(key), key == 7 ? 99 : key);
  }
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kExists}, {"2", "3", "4"})), "OK MISS OK");
  std::set<std::string> keys;
  for (std::uint64_t cursor = 0;;) {
    const auto page = store->scan(cursor);
    ASSERT_TRUE(page);
    for (const auto& entry : page->entries) keys.insert(entry.key);
    if ((cursor = page->next) == 0) break;
  }
  EXPECT_EQ(keys.size(), 19u);
  EXPECT_TRUE(keys.contains("7"));
}

TEST_P(FileModes, DamageIsNeverGivenOutAndIsDeleted) {
  const TestDirectory directory;
  const Open store = open(directory, options());
  const std::map<std::size_t, FrameFault> places = {
      {0, FrameFault::kMagic},
      {4, FrameFault::kVersion},
      {30, FrameFault::kHeaderChecksum},
      {64, FrameFault::kVersion},
      {90, FrameFault::kHeaderChecksum},
      {3000, FrameFault::kHeaderChecksum},
      {4096, FrameFault::kPayloadChecksum},
      {4096 + kSize - 1, FrameFault::kPayloadChecksum}};
  for (const auto& [at, fault] : places) {
    ASSERT_EQ(set(*store, "a", 1), "OK");
    flip(file_of(directory, "a"), at);
    const std::uint64_t before = refused(*store, fault);
    EXPECT_EQ(get(*store, "a"), "CORRUPT") << "byte " << at;
    EXPECT_EQ(refused(*store, fault), before + 1) << "byte " << at;
    EXPECT_FALSE(fs::exists(file_of(directory, "a")));
    EXPECT_EQ(get(*store, "a"), "MISS");
  }
  ASSERT_EQ(set(*store, "a", 1), "OK");
  flip(file_of(directory, "a"), 4096 + kSize);
  expect_value(*store, "a", 1);  // behind the payload is nothing
  EXPECT_EQ(store->usage()->keys, 1u);
}

TEST_P(FileModes, CutOffAndForeignFilesAreRefused) {
  const TestDirectory directory;
  const Open store = open(directory, options());
  const auto expect_refused = [&](const std::string& status, FrameFault fault) {
    const std::uint64_t before = refused(*store, fault);
    EXPECT_EQ(get(*store, "a"), status);
    EXPECT_EQ(refused(*store, fault), before + 1);
    EXPECT_FALSE(fs::exists(file_of(directory, "a")));
  };
  for (const std::size_t length : {0u, 1u, 100u, 4096u, 5000u, 8192u, 16383u}) {
    ASSERT_EQ(set(*store, "a", 1), "OK");
    fs::resize_file(file_of(directory, "a"), length);
    EXPECT_EQ(run(*store, make_job({.verb = Verb::kExists}, {"a"})), "MISS");
    expect_refused("CORRUPT", FrameFault::kShape);
  }
  ASSERT_EQ(set(*store, "a", 1), "OK");
  fs::resize_file(file_of(directory, "a"), 1'000'000);
  expect_refused("CORRUPT", FrameFault::kShape);
  // Sound files in the wrong place.
  ASSERT_EQ(set(*store, "b", 2), "OK");
  fs::rename(file_of(directory, "b"), file_of(directory, "a"));
  expect_refused("CORRUPT", FrameFault::kKey);
  {
    const Open other = open(directory, options(), kSize, 2);
    ASSERT_EQ(set(*other, "a", 3), "OK");
  }
  expect_refused("CORRUPT", FrameFault::kIdentity);
  {
    const Open longer = open(directory, options(), 5 * kSize);
    ASSERT_EQ(set(*longer, "a", 4), "OK");
  }
  expect_refused("SIZE_MISMATCH", FrameFault::kSize);
}

TEST_P(FileModes, ThreadsAtOnceSeeWholeValuesOnly) {
  const TestDirectory directory;
  constexpr std::size_t kLarge = 300'000;
  const Open store = open(directory, options(), kLarge);
  const Open peer = open(directory, options(), kLarge);
  std::vector<std::string> versions;
  for (unsigned version = 0; version < 4; ++version) versions.push_back(value_of(kLarge, version));
  std::atomic<int> wrong{0};
  std::atomic<int> found{0};
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      Connector& mine = thread % 2 == 0 ? *store : *peer;
      for (unsigned round = 0; round < 30; ++round) {
        const std::string key = std::to_string(round % 3);
        if (thread < 2) {
          set(mine, key, (thread + round) % 4, round % 2);
          if (round % 7 == 0) run(mine, make_job({.verb = Verb::kDelete}, {key}));
          continue;
        }
        std::string value;
        const std::string status = get(mine, key, &value, round % 2);
        if (status != "OK" && status != "MISS") ++wrong;
        if (status != "OK") continue;
        ++found;
        if (std::ranges::find(versions, value) == versions.end()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(store->usage()->used_bytes, peer->usage()->used_bytes);
}

TEST(FileConnector, CapacityHoldsForAllWhoShareTheDirectory) {
  const TestDirectory directory;
  const FileOptions options{.capacity_bytes = 3 * file_size(kSize, false)};
  const Open store = open(directory, options);
  const Open peer = open(directory, options, kSize, 2, "q:");
  EXPECT_EQ(set(*store, "a", 1), "OK");
  EXPECT_EQ(set(*peer, "b", 2), "OK");
  EXPECT_EQ(set(*store, "c", 3), "OK");
  std::vector<Buffer> buffers;
  buffers.emplace_back(kSize);
  const auto job = make_job({.verb = Verb::kSet}, {"d"}, &buffers);
  EXPECT_EQ(run(*peer, job), "SERVER_ERROR");
  EXPECT_NE(job->error().text.find("full: 49152 of 49152"), std::string::npos) << job->error().text;
  EXPECT_EQ(set(*store, "a", 4), "OK") << "a value replaces its like";
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kDelete}, {"c"})), "OK");
  EXPECT_EQ(set(*peer, "d", 5), "OK");
  EXPECT_TRUE(store->available());
}

TEST(FileConnector, TheCountIsPutRightWhenTheDirectoryWasChangedByOthers) {
  const TestDirectory directory;
  const Open store = open(directory, {.rescan_after = kMilli});
  ASSERT_EQ(set(*store, "a", 1), "OK");
  ASSERT_EQ(set(*store, "b", 1), "OK");
  fs::remove(file_of(directory, "b"));
  ASSERT_EQ(set(*store, "c", 1), "OK");
  const Nanos until = monotonic_ns() + kPatience;
  while (store->usage()->used_bytes != 2 * file_size(kSize, false)) {
    ASSERT_LT(monotonic_ns(), until);
    ASSERT_EQ(set(*store, "c", 1), "OK");
  }
}

TEST(FileConnector, CountersThatAreTruncatedInUseEndNobodyAndAreWrittenAnew) {
  const TestDirectory directory;
  const Open store = open(directory);
  const Open peer = open(directory);
  ASSERT_EQ(set(*store, "a", 1), "OK");
  fs::resize_file(directory.file("usage"), 0);
  EXPECT_EQ(store->usage()->used_bytes, file_size(kSize, false)) << "as far as it knows";
  ASSERT_EQ(set(*store, "b", 1), "OK");
  EXPECT_EQ(store->usage()->used_bytes, 2 * file_size(kSize, false));
  EXPECT_EQ(peer->usage()->used_bytes, 2 * file_size(kSize, false)) << "they count together again";
  EXPECT_EQ(peer->usage()->keys, 2u);
}

TEST(FileConnector, ValuesExpireAndNobodyIsToldOfThem) {
  const TestDirectory directory;
  const Open store = open(directory);
  std::vector<Buffer> buffers;
  buffers.emplace_back(kSize);
  buffers[0].fill(1);
  ASSERT_EQ(run(*store, make_job({.verb = Verb::kSet, .ttl_ms = 100'000}, {"a"}, &buffers)), "OK");
  expect_value(*store, "a", 1);
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kTouch}, {"a"})), "OK");
  ASSERT_EQ(run(*store, make_job({.verb = Verb::kSet, .ttl_ms = 1},
                                 {
                                     "a",
                                 },
                                 &buffers)),
            "OK");
  const Nanos until = monotonic_ns() + kPatience;
  while (run(*store, make_job({.verb = Verb::kExists}, {"a"})) != "MISS") {
    ASSERT_LT(monotonic_ns(), until);
  }
  EXPECT_EQ(get(*store, "a"), "MISS");
  EXPECT_FALSE(fs::exists(file_of(directory, "a")));
}

TEST(FileConnector, OnlyItsOwnDirectoryIsTaken) {
  const TestDirectory directory;
  fs::create_directories(directory.path());
  std::ofstream(directory.file("letter.txt")) << "dear";
  const auto refused = FileConnector::open(test_space(kSize), {.path = directory.path()});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
  fs::remove(directory.file("letter.txt"));
  std::ofstream(directory.file("format")) << "kvferry file store 2\n";
  EXPECT_FALSE(FileConnector::open(test_space(kSize), {.path = directory.path()}));
  EXPECT_FALSE(FileConnector::open(test_space(kSize), {.path = "/proc/no/such"}));
}

UniqueFd opened(const TestDirectory& directory) {
  fs::create_directory(directory.path());
  return UniqueFd(::open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

TEST(FileUsage, WhatADeadOwnerHadReservedIsGivenBackOnceHoweverOftenItIsSwept) {
  const TestDirectory directory;
  const UniqueFd root = opened(directory);
  FileUsage living(root.get(), "usage", 1);
  {
    FileUsage dead(root.get(), "usage", 2);
    ASSERT_TRUE(dead.reserve(100, 1000));
    ASSERT_TRUE(dead.reserve(200, 1000));
    dead.stored(100, -1);
  }
  ASSERT_TRUE(living.reserve(10, 1000));
  EXPECT_EQ(living.bytes(), 310);
  for (int sweep = 0; sweep < 3; ++sweep) living.forget(2);
  EXPECT_EQ(living.bytes(), 110);
  living.forget_others();
  EXPECT_EQ(living.bytes(), 110);
  EXPECT_FALSE(living.reserve(891, 1000));
  EXPECT_TRUE(living.reserve(890, 1000));
}

TEST(FileUsage, MoreOwnersThanItCountsKeepTheLimitOfWhatIsStored) {
  const TestDirectory directory;
  const UniqueFd root = opened(directory);
  for (unsigned owner = 1; owner <= 300; ++owner) {
    FileUsage usage(root.get(), "usage", owner);
    ASSERT_TRUE(usage.reserve(1, 0));
  }
  FileUsage last(root.get(), "usage", 301);
  ASSERT_TRUE(last.reserve(5, 0));
  last.stored(5, -1);
  EXPECT_EQ(last.bytes(), 254 + 5);
  EXPECT_FALSE(last.reserve(1, 254 + 5));
  last.forget_others();
  EXPECT_EQ(last.bytes(), 5);
}

TEST(FileConnector, WhatTheDeadLeftBehindIsSweptAndTheLivingKeepTheirs) {
  const TestDirectory directory;
  const Open store = open(directory);
  const fs::path tmp = directory.file("tmp");
  std::string living;
  for (const auto& entry : fs::directory_iterator(tmp)) living = entry.path().stem();
  ASSERT_EQ(living.size(), 16u);
  std::ofstream(tmp / (living + "-900")) << "being written";
  std::ofstream(tmp / "00000000deadbeef.owner");
  std::ofstream(tmp / "00000000deadbeef-0") << "half a value";
  std::ofstream(tmp / "1111111111111111-5") << "no owner at all";
  const Open peer = open(directory);
  EXPECT_TRUE(fs::exists(tmp / (living + "-900")));
  EXPECT_FALSE(fs::exists(tmp / "00000000deadbeef.owner"));
  EXPECT_FALSE(fs::exists(tmp / "00000000deadbeef-0"));
  EXPECT_FALSE(fs::exists(tmp / "1111111111111111-5"));
}

TEST(FileConnector, DescriptionsOfAllIdentitiesAreKept) {
  const TestDirectory directory;
  {
    const Open store = open(directory, {}, kSize, 1);
  }
  const Open store = open(directory, {}, kSize, 2);
  const auto found = store->descriptions();
  ASSERT_TRUE(found);
  const std::map<Identity, std::string> texts(found->begin(), found->end());
  EXPECT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts.at(test_space(1, 1).identity), "n=1\n");
  EXPECT_EQ(texts.at(test_space(1, 2).identity), "n=2\n");
}

// Fails or holds up the steps that a test names.
class Trouble final : public FileSteps {
 public:
  int before(Step step, const std::string&) override {
    std::unique_lock lock(mutex_);
    ++holding_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return step != held_; });
    --holding_;
    return step == failing_ ? error_ : 0;
  }
  void fail(Step step, int error) {
    const std::lock_guard lock(mutex_);
    failing_ = step;
    error_ = error;
  }
  void hold(std::optional<Step> step) {
    const std::lock_guard lock(mutex_);
    held_ = step;
    changed_.notify_all();
  }
  // How many steps are held up; waits until one is, if nobody comes soon.
  [[nodiscard]] int holding() {
    const std::lock_guard lock(mutex_);
    return holding_;
  }
  void await_held() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return holding_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Step> failing_;
  std::optional<Step> held_;
  int error_ = 0;
  int holding_ = 0;
};

TEST(FileConnector, WhatTheDiskRefusesIsAStatusWithItsWords) {
  const TestDirectory directory;
  Trouble trouble;
  const Open store = open(directory, {.fsync = Fsync::kData, .steps = &trouble});
  ASSERT_EQ(set(*store, "old", 1), "OK");
  using Step = FileSteps::Step;
  for (const Step step : {Step::kCreate, Step::kWrite, Step::kSync, Step::kRename}) {
    trouble.fail(step, ENOSPC);
    std::vector<Buffer> buffers;
    buffers.emplace_back(kSize);
    const auto job = make_job({.verb = Verb::kSet}, {"new"}, &buffers);
    EXPECT_EQ(run(*store, job), "SERVER_ERROR");
    EXPECT_NE(job->error().text.find("No space left"), std::string::npos) << job->error().text;
    EXPECT_EQ(get(*store, "new"), "MISS");
    EXPECT_TRUE(store->available()) << "a full disk is no broken one";
  }
  trouble.fail(Step::kWrite, EIO);
  for (int count = 0; count < 3; ++count) EXPECT_EQ(set(*store, "new", 2), "SERVER_ERROR");
  EXPECT_FALSE(store->available());
  expect_value(*store, "old", 1);
  EXPECT_TRUE(store->available()) << "something worked again";
  EXPECT_EQ(store->usage()->used_bytes, file_size(kSize, false));
  std::size_t left = 0;
  for (const auto& entry : fs::directory_iterator(directory.file("tmp"))) {
    left += entry.path().extension() == ".owner" ? 0u : 1u;
  }
  EXPECT_EQ(left, 0u);
}

TEST(FileConnector, ADiskThatHangsHoldsUpNobodyWhoDoesNotNeedIt) {
  const TestDirectory directory;
  Trouble trouble;
  const Open store = open(directory, {.steps = &trouble});
  ASSERT_EQ(set(*store, "old", 1), "OK");
  trouble.hold(FileSteps::Step::kWrite);
  std::vector<Buffer> buffers;
  for (int key = 0; key < 40; ++key) buffers.emplace_back(kSize);
  std::vector<std::string> keys;
  for (int key = 0; key < 40; ++key) keys.push_back(std::to_string(key));
  std::shared_ptr<Job> job;
  for (Nanos limit = 20 * kMilli;; limit *= 4) {  // a busy machine may begin with none in time
    ASSERT_LT(limit, kPatience) << "nobody begins to write";
    const Nanos deadline = monotonic_ns() + limit;
    job = make_job({.verb = Verb::kSet, .deadline = deadline}, keys, &buffers);
    ASSERT_TRUE(store->submit(job));
    if (!job->wait(deadline + 20 * kMilli)) break;
    ASSERT_EQ(trouble.holding(), 0) << "the disk has some of the buffers";
  }
  trouble.await_held();
  expect_value(*store, "old", 1);
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kExists}, {"old"})), "OK");
  std::vector<std::shared_ptr<Job>> later;
  do {  // a thread that was late for the others may begin with one, and hangs from then on
    ASSERT_LT(later.size(), 5u) << "there are four that write";
    const Nanos deadline = monotonic_ns() + 20 * kMilli;
    later.push_back(make_job({.verb = Verb::kSet, .deadline = deadline}, {"late"}, &buffers));
    ASSERT_TRUE(store->submit(later.back()));
  } while (!later.back()->wait(monotonic_ns() + 2 * kSecond));
  EXPECT_EQ(later.back()->status(0), Status::kTimeout) << "it was never begun: it ends in time";
  trouble.hold({});
  ASSERT_TRUE(job->wait(monotonic_ns() + kPatience));
  EXPECT_EQ(job->status(39), Status::kTimeout);
  for (const auto& begun : later) EXPECT_TRUE(begun->wait(monotonic_ns() + kPatience));
}

TEST(FileConnector, ClosingDoesNotWaitForADiskThatHangs) {
  const TestDirectory directory;
  Trouble trouble;
  std::shared_ptr<Job> job;
  std::vector<Buffer> buffers;
  buffers.emplace_back(kSize);
  {
    const Open store = open(directory, {.steps = &trouble});
    trouble.hold(FileSteps::Step::kWrite);
    job = make_job({.verb = Verb::kSet}, {"a"}, &buffers);
    ASSERT_TRUE(store->submit(job));
    trouble.await_held();
    const Nanos before = monotonic_ns();
    store->close();
    EXPECT_LT(monotonic_ns() - before, Connector::kCloseWait + 5 * kSecond);
    EXPECT_EQ(store->running(), 1u);
    EXPECT_FALSE(job->finished());
  }
  trouble.hold({});
  EXPECT_TRUE(job->wait(monotonic_ns() + kPatience));
}

}  // namespace
}  // namespace kvferry::connector
