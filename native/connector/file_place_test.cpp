// The directory of a file store is removed, renamed, emptied or covered while it is open, and
// single chunks have something in their way: the store goes on, and what is not kept is named once.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "connector/file.hpp"
#include "connector/file_place.hpp"
#include "connector/test_jobs.hpp"

namespace kvferry::connector {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSize = 10'000;

Open open(const std::string& path) {
  return Open(FileConnector::open(test_space(kSize), {.path = path}));
}

void until(const std::function<bool()>& holds) {
  const Nanos end = monotonic_ns() + kPatience;
  while (!holds()) {
    ASSERT_LT(monotonic_ns(), end);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::size_t lines_with(Connector& store, const std::string& word) {
  std::uint64_t dropped = 0;
  std::size_t count = 0;
  for (const LogLine& line : store.log().drain(dropped)) {
    count += line.text.find(word) != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(FilePlace, ADirectoryThatWasRemovedIsMadeAnew) {
  const TestDirectory directory;
  const Open store = open(directory.path());
  ASSERT_EQ(set(*store, "a", 1), "OK");
  fs::remove_all(directory.path());
  until([&] { return set(*store, "b", 2) == "OK" && fs::exists(directory.file("format")); });
  expect_value(*store, "b", 2);
  EXPECT_EQ(get(*store, "a"), "MISS");
  EXPECT_TRUE(store->available());
  EXPECT_EQ(store->usage()->keys, 1u);
  EXPECT_EQ(lines_with(*store, "was removed"), 1u);
}

TEST(FilePlace, ADirectoryThatWasEmptiedIsFilledAgain) {
  const TestDirectory directory;
  const Open store = open(directory.path());
  ASSERT_EQ(set(*store, "a", 1), "OK");
  for (const auto& entry : fs::directory_iterator(directory.path())) fs::remove_all(entry);
  until([&] { return set(*store, "b", 2) == "OK"; });
  expect_value(*store, "b", 2);
}

TEST(FilePlace, WhatAWriteLeavesInADirectoryThatIsEmptiedKeepsNobodyOut) {
  const TestDirectory directory;
  const Open store = open(directory.path());
  ASSERT_EQ(set(*store, "a", 1), "OK");
  for (const auto& entry : fs::directory_iterator(directory.path())) fs::remove_all(entry.path());
  fs::create_directory(directory.file("7f"));  // for the file of a value
  until([&] { return set(*store, "b", 2) == "OK" && fs::exists(directory.file("format")); });
  expect_value(*store, "b", 2);
}

TEST(FilePlace, ADirectoryThatWasRenamedIsWaitedForAndNothingIsMadeInItsPlace) {
  const TestDirectory directory;
  const Open store = open(directory.path());
  ASSERT_EQ(set(*store, "a", 1), "OK");
  const fs::path aside = fs::path(directory.path() + "-aside");
  fs::rename(directory.path(), aside);
  until([&] { return !store->available(); });
  EXPECT_EQ(get(*store, "a"), "UNAVAILABLE");
  EXPECT_EQ(set(*store, "b", 2), "UNAVAILABLE");
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kExists}, {"a"})), "UNAVAILABLE");
  EXPECT_FALSE(store->usage());
  EXPECT_FALSE(fs::exists(directory.path()));
  fs::rename(aside, directory.path());
  until([&] { return store->available(); });
  expect_value(*store, "a", 1);
  EXPECT_EQ(set(*store, "b", 2), "OK");
  EXPECT_TRUE(fs::exists(directory.file(file_name("p:b"))));
}

TEST(FilePlace, AnotherDirectoryInItsPlaceIsUsedAndAForeignOneIsNot) {
  const TestDirectory directory;
  const Open store = open(directory.path());
  ASSERT_EQ(set(*store, "a", 1), "OK");
  fs::rename(directory.path(), fs::path(directory.path() + "-aside"));
  fs::create_directory(directory.path());
  const UniqueFd foreign(::open(directory.file("notes").c_str(), O_WRONLY | O_CREAT, 0600));
  until([&] { return !store->available(); });
  EXPECT_EQ(set(*store, "b", 2), "UNAVAILABLE");
  fs::remove(directory.file("notes"));
  until([&] { return set(*store, "b", 2) == "OK"; });
  EXPECT_TRUE(fs::exists(directory.file(file_name("p:b"))));
}

// What a mount point leaves behind when its file system goes: a directory of another device.
TEST(FilePlace, WhatLiesUnderAMountPointIsNotFilled) {
  const TestDirectory directory;
  const fs::path elsewhere = "/dev/shm/kvferry-place-" + std::to_string(::getpid());
  fs::create_directories(elsewhere);
  struct stat here{};
  struct stat there{};
  ::stat(fs::path(directory.path()).parent_path().c_str(), &here);
  ::stat(elsewhere.c_str(), &there);
  if (here.st_dev == there.st_dev) GTEST_SKIP() << "/dev/shm is no file system of its own";
  const fs::path point = fs::path(directory.path() + "-point");
  fs::create_directory_symlink(elsewhere, point);
  const std::string path = point / "kv";
  const Open store = open(path);
  ASSERT_EQ(set(*store, "a", 1), "OK");
  fs::remove(point);
  fs::create_directory(point);
  until([&] { return !store->available(); });
  EXPECT_EQ(set(*store, "b", 2), "UNAVAILABLE");
  fs::create_directory(path);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_TRUE(fs::is_empty(path)) << "it is on the disk of the mount point";
  EXPECT_FALSE(store->available());
  fs::remove_all(point);
  fs::create_directory_symlink(elsewhere, point);
  until([&] { return store->available(); });
  expect_value(*store, "a", 1);
  fs::remove_all(elsewhere);
}

class InTheWay : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, InTheWay,
                         ::testing::Values("directory", "pipe", "link", "loop", "parent"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_P(InTheWay, OfOneChunkItIsNamedOnceAndTheOthersAreKept) {
  const TestDirectory directory;
  const Open store = open(directory.path());
  const std::string kind = GetParam();
  const fs::path place = directory.file(file_name("p:a"));
  if (kind != "parent") fs::create_directory(place.parent_path());
  if (kind == "directory") fs::create_directories(place / "full");
  if (kind == "pipe") EXPECT_EQ(::mkfifo(place.c_str(), 0600), 0);
  if (kind == "link") fs::create_symlink("/dev/zero", place);
  if (kind == "loop") fs::create_symlink(place, place);
  if (kind == "parent") {
    const UniqueFd file(::open(place.parent_path().c_str(), O_WRONLY | O_CREAT, 0600));
  }
  for (int round = 0; round < 10; ++round) {
    EXPECT_EQ(run(*store, make_job({.verb = Verb::kExists}, {"a"})), "MISS");
    EXPECT_EQ(get(*store, "a"), "MISS");
    EXPECT_EQ(set(*store, "a", 1), "SERVER_ERROR");
    EXPECT_EQ(run(*store, make_job({.verb = Verb::kDelete}, {"a"})), "MISS");
    EXPECT_TRUE(store->available());
    const std::string other = "b" + std::to_string(round);
    EXPECT_EQ(set(*store, other, 2), "OK");
    expect_value(*store, other, 2);
  }
  EXPECT_EQ(lines_with(*store, "in the way"), 1u);
  EXPECT_EQ(store->usage()->keys, 10u);
  fs::remove_all(kind == "parent" ? place.parent_path() : place);
  EXPECT_EQ(set(*store, "a", 1), "OK");
  expect_value(*store, "a", 1);
}

TEST(InTheWay, AFileThatMayNotBeReadIsAbsent) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const TestDirectory directory;
  const Open store = open(directory.path());
  ASSERT_EQ(set(*store, "a", 1), "OK");
  fs::permissions(directory.file(file_name("p:a")), fs::perms::none);
  EXPECT_EQ(get(*store, "a"), "MISS");
  EXPECT_EQ(run(*store, make_job({.verb = Verb::kExists}, {"a"})), "MISS");
  EXPECT_EQ(set(*store, "a", 2), "SERVER_ERROR");
  EXPECT_TRUE(store->available());
  EXPECT_EQ(lines_with(*store, "in the way"), 1u);
}

}  // namespace
}  // namespace kvferry::connector
