#include "mem/shared_segment.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

#include "mem/test_segment.hpp"

namespace kvferry::mem {
namespace {

constexpr std::uint64_t kLock = (std::uint64_t{1} << 61) + 7;

Errc code_of(const auto& result) {
  EXPECT_FALSE(result.has_value());
  return result.error().code;
}

TEST(SharedSegment, IsAPrivateFileOfWholeBlocksWithoutMemory) {
  const TestPath path;
  auto segment = SharedSegment::create(path.text, 10000);
  ASSERT_TRUE(segment.has_value()) << segment.error().context;
  EXPECT_EQ((*segment)->size_bytes(), 12288u);
  EXPECT_EQ((*segment)->block_size_bytes(), 4096u);
  EXPECT_EQ((*segment)->path(), path.text);
  EXPECT_EQ(path.stat().st_mode & 07777, 0600u);
  EXPECT_EQ(path.stat().st_size, 12288);
  EXPECT_EQ(path.backed_bytes(), 0u);
}

TEST(SharedSegment, BacksWhatIsCommittedAndTakesBackWhatIsDiscarded) {
  const TestPath path;
  auto segment = SharedSegment::create(path.text, 64 * kKiB);
  ASSERT_TRUE(segment.has_value());
  ASSERT_TRUE((*segment)->commit(5000, 5000).has_value());  // touches blocks 1 and 2
  EXPECT_EQ(path.backed_bytes(), 8192u);
  (*segment)->bytes()[5000] = std::byte{9};
  ASSERT_TRUE((*segment)->commit(0, 64 * kKiB).has_value());
  EXPECT_EQ(path.backed_bytes(), 64 * kKiB);
  EXPECT_EQ((*segment)->bytes()[5000], std::byte{9}) << "content stays";
  ASSERT_TRUE((*segment)->discard(4096, 8191).has_value());  // block 1 wholly, block 2 in part
  EXPECT_EQ(path.backed_bytes(), 60 * kKiB);
  EXPECT_EQ((*segment)->bytes()[5000], std::byte{0});
  EXPECT_EQ(path.stat().st_size, 65536);
}

std::size_t mapped_shared_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t size = 0;
  std::size_t resident = 0;
  std::size_t shared = 0;
  file >> size >> resident >> shared;
  return shared * 4096;
}

TEST(SharedSegment, WhatIsForgottenIsMappedAgainWithItsContent) {
  const TestPath path;
  constexpr std::size_t kSize = 16 * kMiB;
  auto segment = SharedSegment::create(path.text, kSize);
  ASSERT_TRUE(segment.has_value());
  ASSERT_TRUE((*segment)->commit(0, kSize).has_value());
  for (std::size_t at = 0; at < kSize; at += 4096) (*segment)->bytes()[at] = std::byte{7};
  const std::size_t before = mapped_shared_bytes();
  (*segment)->forget();
  EXPECT_LE(mapped_shared_bytes() + kSize / 2, before);
  EXPECT_EQ(path.backed_bytes(), kSize);
  for (std::size_t at = 0; at < kSize; at += 4096) {
    ASSERT_EQ((*segment)->bytes()[at], std::byte{7});
  }
}

TEST(SharedSegment, RefusesRangesOutside) {
  const TestPath path;
  auto segment = SharedSegment::create(path.text, 8192);
  ASSERT_TRUE(segment.has_value());
  EXPECT_EQ(code_of((*segment)->commit(4096, 4097)), Errc::kInvalidArgument);
  EXPECT_EQ(code_of((*segment)->commit(8193, 0)), Errc::kInvalidArgument);
  EXPECT_EQ(code_of((*segment)->discard(SIZE_MAX, 2)), Errc::kInvalidArgument);
  EXPECT_TRUE((*segment)->discard(8192, 0).has_value());
}

TEST(SharedSegment, MoreThanTheFileSystemHasIsRefusedBeforeAnyIsTaken) {
  const TestPath path;
  struct statvfs system{};
  ASSERT_EQ(::statvfs("/dev/shm", &system), 0);
  const std::size_t vast = system.f_blocks * system.f_frsize + kMiB;
  auto segment = SharedSegment::create(path.text, vast);
  ASSERT_TRUE(segment.has_value()) << segment.error().context;
  const auto refused = (*segment)->commit(0, vast);
  EXPECT_EQ(code_of(refused), Errc::kSystem);
  EXPECT_NE(refused.error().context.find("/dev/shm"), std::string::npos);
  EXPECT_EQ(path.backed_bytes(), 0u);
}

TEST(SharedSegment, RefusesSizesAndPathsThatCannotBe) {
  const TestPath path;
  EXPECT_EQ(code_of(SharedSegment::create(path.text, 0)), Errc::kInvalidArgument);
  EXPECT_EQ(code_of(SharedSegment::create(path.text, SIZE_MAX)), Errc::kInvalidArgument);
  EXPECT_EQ(code_of(SharedSegment::create(path.text + "/none/x", 4096)), Errc::kSystem);
  EXPECT_FALSE(path.exists()) << "nothing is left behind";
  auto first = SharedSegment::create(path.text, 4096);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(code_of(SharedSegment::create(path.text, 4096)), Errc::kSystem);
  EXPECT_TRUE(path.exists()) << "somebody else's file stays";
}

TEST(SharedSegment, OwnerAndClientsSeeOneMemory) {
  const TestPath path;
  auto owner = SharedSegment::create(path.text, 8192);
  ASSERT_TRUE(owner.has_value());
  ASSERT_TRUE((*owner)->commit(0, 8192).has_value());
  auto client = SharedSegment::attach(path.text, 8192, kLock);
  ASSERT_TRUE(client.has_value()) << client.error().context;
  (*client)->bytes()[8191] = std::byte{5};
  EXPECT_EQ((*owner)->bytes()[8191], std::byte{5});
  client->reset();
  EXPECT_TRUE(path.exists()) << "a client removes nothing";
}

TEST(SharedSegment, ClientsRefuseWhatIsNotTheOwnersPrivateFile) {
  const TestPath path, link, fifo;
  auto owner = SharedSegment::create(path.text, 8192);
  ASSERT_TRUE(owner.has_value());
  EXPECT_EQ(code_of(SharedSegment::attach(path.text, 4096, kLock)), Errc::kInvalidArgument);
  EXPECT_EQ(code_of(SharedSegment::attach(path.text, 0, kLock)), Errc::kInvalidArgument);
  EXPECT_EQ(code_of(SharedSegment::attach(link.text, 8192, kLock)), Errc::kSystem);
  EXPECT_EQ(code_of(SharedSegment::attach(path.text, 8192, INT64_MAX)), Errc::kInvalidArgument);
  EXPECT_EQ(code_of(SharedSegment::attach(path.text, 8192, UINT64_MAX)), Errc::kInvalidArgument);
  ASSERT_EQ(::symlink(path.text.c_str(), link.text.c_str()), 0);
  EXPECT_EQ(code_of(SharedSegment::attach(link.text, 8192, kLock)), Errc::kSystem);
  ASSERT_EQ(::mkfifo(fifo.text.c_str(), 0600), 0);
  EXPECT_EQ(code_of(SharedSegment::attach(fifo.text, 8192, kLock)), Errc::kInvalidArgument);
  for (const mode_t mode : {0640u, 0606u, 0601u}) {
    ASSERT_EQ(::chmod(path.text.c_str(), mode), 0);
    EXPECT_EQ(code_of(SharedSegment::attach(path.text, 8192, kLock)), Errc::kInvalidArgument);
  }
}

TEST(SharedSegment, ALockHasOneHolderAndOthersSeeIt) {
  const TestPath path;
  auto owner = SharedSegment::create(path.text, 4096);
  ASSERT_TRUE(owner.has_value());
  EXPECT_FALSE(*(*owner)->lock_is_held(kLock));
  auto client = SharedSegment::attach(path.text, 4096, kLock);
  ASSERT_TRUE(client.has_value());
  EXPECT_TRUE(*(*owner)->lock_is_held(kLock));
  EXPECT_FALSE(*(*owner)->lock_is_held(kLock + 1));
  EXPECT_TRUE(*(*client)->lock_is_held(SharedSegment::kOwnerLock));
  EXPECT_EQ(code_of(SharedSegment::attach(path.text, 4096, kLock)), Errc::kCapacity);
  auto second = SharedSegment::attach(path.text, 4096, kLock + 1);
  const std::array<std::uint64_t, 3> locks{kLock - 1, kLock, kLock + 1};
  std::array<std::uint8_t, 3> held{7, 7, 7};
  ASSERT_TRUE((*owner)->locks_held(locks, held).has_value());
  EXPECT_EQ(held, (std::array<std::uint8_t, 3>{0, 1, 1}));
  EXPECT_EQ(code_of((*owner)->lock_is_held(UINT64_MAX)), Errc::kInvalidArgument);
  client->reset();
  EXPECT_FALSE(*(*owner)->lock_is_held(kLock));
}

// What the whole fence rests on: the kernel counts mappings as uses of the open file description.
TEST(SharedSegment, ALockOutlivesItsDescriptorAsLongAsTheMapping) {
  const TestPath path;
  auto owner = SharedSegment::create(path.text, 8192);
  ASSERT_TRUE(owner.has_value());
  auto client = SharedSegment::attach(path.text, 8192, kLock);
  ASSERT_TRUE(client.has_value());
  (*client)->close_descriptor();
  EXPECT_TRUE(*(*owner)->lock_is_held(kLock)) << "the mapping holds it";
  EXPECT_EQ(code_of((*client)->lock_is_held(1)), Errc::kClosed);
  client->reset();
  EXPECT_FALSE(*(*owner)->lock_is_held(kLock));
}

TEST(SharedSegment, ALockLastsUntilTheLastProcessWithTheMappingEnds) {
  const TestPath path;
  auto owner = SharedSegment::create(path.text, 4096);
  ASSERT_TRUE(owner.has_value());
  auto client = SharedSegment::attach(path.text, 4096, kLock);
  ASSERT_TRUE(client.has_value());
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // inherits the mapping; ends when the pipe does
    ::close(go[1]);
    (*owner).reset();  // not its file: it stays
    (*client)->close_descriptor();
    char byte;
    const auto got = ::read(go[0], &byte, 1);
    ::_exit(got == 0 ? 0 : 1);
  }
  ::close(go[0]);
  client->reset();
  EXPECT_TRUE(*(*owner)->lock_is_held(kLock)) << "the child may still write";
  ::close(go[1]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(*(*owner)->lock_is_held(kLock));
  EXPECT_TRUE(path.exists());
}

TEST(SharedSegment, AnOwnerRemovesItsFileUnlessItIsKept) {
  const TestPath path;
  {
    auto owner = SharedSegment::create(path.text, 4096);
    ASSERT_TRUE(owner.has_value());
    EXPECT_TRUE(path.exists());
  }
  EXPECT_FALSE(path.exists());
  {
    auto owner = SharedSegment::create(path.text, 4096);
    ASSERT_TRUE(owner.has_value());
    (*owner)->keep(true);
    EXPECT_EQ(code_of(SharedSegment::open(path.text, 4096)), Errc::kCapacity) << "it has an owner";
  }
  EXPECT_TRUE(path.exists());
  auto next = SharedSegment::open(path.text, 4096);
  ASSERT_TRUE(next.has_value()) << next.error().context;
  EXPECT_TRUE((*next)->unlink());
  EXPECT_FALSE((*next)->unlink());
  EXPECT_FALSE(path.exists());
}

TEST(SharedSegment, ANextOwnerFindsTheContent) {
  const TestPath path;
  {
    auto owner = SharedSegment::create(path.text, 8192);
    ASSERT_TRUE(owner.has_value());
    ASSERT_TRUE((*owner)->commit(4096, 1).has_value());
    (*owner)->bytes()[4096] = std::byte{3};
    (*owner)->keep(true);
  }
  EXPECT_EQ(code_of(SharedSegment::open(path.text, 4096)), Errc::kInvalidArgument);
  auto next = SharedSegment::open(path.text, 8192);
  ASSERT_TRUE(next.has_value()) << next.error().context;
  EXPECT_EQ((*next)->bytes()[4096], std::byte{3});
}

TEST(SharedSegment, TheNameOfAnotherFileIsNotRemoved) {
  const TestPath path;
  auto owner = SharedSegment::create(path.text, 4096);
  ASSERT_TRUE(owner.has_value());
  ASSERT_EQ(::unlink(path.text.c_str()), 0);
  auto other = SharedSegment::create(path.text, 4096);
  ASSERT_TRUE(other.has_value());
  owner->reset();
  EXPECT_TRUE(path.exists());
}

}  // namespace
}  // namespace kvferry::mem
