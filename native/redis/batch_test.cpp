#include "redis/batch.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/test_names.hpp"
#include "codec/stripe.hpp"

namespace kvferry::redis {
namespace {

using codec::kStripeSizeBytesMax;

// Statuses by name, "OK MISS"; `sizes` receives the sizes.
std::string results(const Batch& batch, std::vector<std::uint64_t>* sizes = nullptr) {
  std::vector<std::uint8_t> statuses(batch.item_count());
  std::vector<std::uint64_t> found(batch.item_count());
  batch.results(statuses.data(), found.data());
  if (sizes != nullptr) *sizes = found;
  std::string text;
  for (const std::uint8_t status : statuses) {
    text += (text.empty() ? "" : " ") + std::string(name(static_cast<Status>(status)));
  }
  return text;
}

// A framed GET of one value of five stripes; no byte of it is touched.
std::unique_ptr<Batch> striped(Verb verb = Verb::kGet) {
  auto batch = std::make_unique<Batch>(Batch::Options{.verb = verb, .framed = true});
  batch->add("v", {static_cast<std::byte*>(nullptr), 4 * kStripeSizeBytesMax + 1});
  return batch;
}

TEST(Batch, EachKeyHasOneStatusAndTheLastSettleIsTold) {
  Batch batch({.verb = Verb::kGet});
  std::vector<std::byte> memory(30);
  const MutableBytes all(memory);
  batch.reserve(3, 3);
  batch.add("a", all.first(10));
  batch.add("bb", all.subspan(10, 20));
  batch.add("", {});
  EXPECT_EQ(batch.item_count(), 3u);
  EXPECT_EQ(batch.payload_bytes(), 30u);
  auto& commands = batch.commands();
  ASSERT_EQ(commands.size(), 3u);
  EXPECT_EQ(batch.key(commands[0]), "a");
  EXPECT_EQ(batch.key(commands[1]), "bb");
  EXPECT_EQ(batch.key(commands[2]), "");
  EXPECT_EQ(commands[1].data, memory.data() + 10);
  commands[1].found = 7;
  EXPECT_FALSE(batch.settle(commands[1], Status::kSizeMismatch));
  EXPECT_FALSE(batch.settle(commands[0], Status::kOk));
  EXPECT_TRUE(batch.settle(commands[2], Status::kMiss));
  std::vector<std::uint64_t> sizes;
  EXPECT_EQ(results(batch, &sizes), "OK SIZE_MISMATCH MISS");
  EXPECT_EQ(sizes, (std::vector<std::uint64_t>{0, 7, 0}));
}

TEST(Batch, TheFirstReasonIsKept) {
  Batch batch({.verb = Verb::kTouch});
  for (const char* key : {"a", "b", "c"}) batch.add(key, {});
  EXPECT_FALSE(batch.settle(batch.commands()[0], Status::kMiss));
  EXPECT_EQ(batch.error().text, "");
  EXPECT_FALSE(batch.settle(batch.commands()[1], Status::kServerError, "first"));
  EXPECT_TRUE(batch.settle(batch.commands()[2], Status::kServerError, "second"));
  EXPECT_EQ(batch.error().text, "first");
}

TEST(Batch, APrefixEndsAtItsFirstHole) {
  Batch batch({.verb = Verb::kGet, .prefix = true});
  for (const char* key : {"a", "b", "c", "d"}) batch.add(key, {});
  auto& commands = batch.commands();
  for (const Command& command : commands) EXPECT_EQ(batch.withdrawn(command), Status::kPending);
  EXPECT_FALSE(batch.settle(commands[2], Status::kMiss));
  EXPECT_EQ(batch.withdrawn(commands[1]), Status::kPending) << "keys before the hole still count";
  EXPECT_EQ(batch.withdrawn(commands[3]), Status::kCancelled);
  EXPECT_FALSE(batch.settle(commands[0], Status::kOk));
  EXPECT_FALSE(batch.settle(commands[1], Status::kTimeout));
  EXPECT_EQ(batch.withdrawn(commands[2]), Status::kCancelled) << "the hole moved forward";
  EXPECT_TRUE(batch.settle(commands[3], Status::kCancelled));
  EXPECT_EQ(batch.withdrawn(commands[0]), Status::kPending);
  EXPECT_EQ(batch.withdrawn(commands[1]), Status::kPending);
}

TEST(Batch, WithoutPrefixAHoleEndsNothing) {
  Batch batch({.verb = Verb::kGet});
  batch.add("a", {});
  batch.add("b", {});
  EXPECT_FALSE(batch.settle(batch.commands()[0], Status::kMiss));
  EXPECT_EQ(batch.withdrawn(batch.commands()[1]), Status::kPending);
  batch.cancel();
  EXPECT_EQ(batch.withdrawn(batch.commands()[1]), Status::kCancelled);
}

TEST(Batch, AStripedValueIsSeveralCommandsAndStripeZeroIsLast) {
  std::vector<std::byte> memory(2 * kStripeSizeBytesMax + 10);
  Batch batch({.verb = Verb::kSet, .framed = true});
  batch.add("small", MutableBytes(memory).first(5));
  batch.add("large", memory);
  auto& commands = batch.commands();
  ASSERT_EQ(commands.size(), 4u);
  EXPECT_EQ(batch.item_count(), 2u);
  EXPECT_EQ(batch.key(commands[1]), "large#2");
  EXPECT_EQ(batch.key(commands[2]), "large#1");
  EXPECT_EQ(batch.key(commands[3]), "large");
  std::size_t end = 0;
  for (const std::size_t index : {3u, 2u, 1u}) {
    EXPECT_EQ(commands[index].data, memory.data() + end);
    EXPECT_LE(commands[index].size, kStripeSizeBytesMax);
    end += commands[index].size;
  }
  EXPECT_EQ(end, memory.size());
  EXPECT_EQ(batch.value_size(commands[2]), memory.size());
  EXPECT_EQ(batch.stripes(commands[2]).size(), 3u);
  EXPECT_EQ(batch.stripes(commands[0]).size(), 1u);
}

TEST(Batch, WithoutFramesNothingIsStriped) {
  Batch batch({.verb = Verb::kSet});
  batch.add("large", {static_cast<std::byte*>(nullptr), 3 * kStripeSizeBytesMax});
  EXPECT_EQ(batch.commands().size(), 1u);
}

TEST(Batch, AStripedValueIsAllOrNothing) {
  for (std::size_t bad = 0; bad < 5; ++bad) {
    for (const Status status : {Status::kMiss, Status::kCorrupt, Status::kTimeout}) {
      const auto batch = striped();
      auto& commands = batch->commands();
      ASSERT_EQ(commands.size(), 5u);
      for (std::size_t i = 0; i < commands.size(); ++i) {
        EXPECT_EQ(batch->settle(commands[i], i == bad ? status : Status::kOk), i == 4);
      }
      EXPECT_EQ(results(*batch), name(status));
    }
  }
  const auto whole = striped();
  std::uint64_t total = 0;
  for (Command& command : whole->commands()) {
    command.generation = 77;
    total += command.found = command.size;
    (void)whole->settle(command, Status::kOk);
  }
  std::vector<std::uint64_t> sizes;
  EXPECT_EQ(results(*whole, &sizes), "OK");
  EXPECT_EQ(sizes.front(), total);
}

TEST(Batch, AMissingStripeMakesAMissWhateverElseWentWrong) {
  const auto batch = striped();
  const Status statuses[] = {Status::kCorrupt, Status::kOk, Status::kMiss, Status::kOk,
                             Status::kSizeMismatch};
  for (std::size_t i = 0; i < 5; ++i) (void)batch->settle(batch->commands()[i], statuses[i]);
  EXPECT_EQ(results(*batch), "MISS");
}

TEST(Batch, MixedGenerationsAreAMissForReadersOnly) {
  for (std::size_t other = 0; other < 5; ++other) {
    const auto read = striped();
    const auto write = striped(Verb::kSet);
    for (const auto& batch : {read.get(), write.get()}) {
      for (std::size_t i = 0; i < 5; ++i) {
        batch->commands()[i].generation = i == other ? 2 : 1;
        (void)batch->settle(batch->commands()[i], Status::kOk);
      }
    }
    EXPECT_EQ(results(*read), "MISS");
    EXPECT_EQ(results(*write), "OK");
  }
}

TEST(Batch, ADeletedStripedValueIsWhatItsFirstStripeWas) {
  const auto batch = striped(Verb::kDelete);
  for (Command& command : batch->commands()) {
    (void)batch->settle(command, command.stripe == 0 ? Status::kOk : Status::kMiss);
  }
  EXPECT_EQ(results(*batch), "OK");
}

TEST(Batch, WaitReturnsAtTheMomentOrWhenFinished) {
  Batch batch({.verb = Verb::kTouch});
  batch.add("a", {});
  EXPECT_FALSE(batch.wait(monotonic_ns()));
  EXPECT_FALSE(batch.wait(0));
  std::thread worker([&] {
    if (batch.settle(batch.commands()[0], Status::kOk)) batch.finish();
  });
  EXPECT_TRUE(batch.wait(kNever));
  worker.join();
  EXPECT_TRUE(batch.finished());
  EXPECT_TRUE(batch.wait(0)) << "it stays finished";
  EXPECT_GE(batch.elapsed(), 0);
}

TEST(Batch, ExactlyOneOfManyThreadsSettlesTheLastCommand) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kEach = 200;
  Batch batch({.verb = Verb::kTouch, .prefix = true});
  for (std::size_t i = 0; i < kThreads * kEach; ++i) batch.add("k", {});
  std::atomic<int> last{0};
  std::vector<std::thread> workers;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    workers.emplace_back([&, thread] {
      for (std::size_t i = thread; i < kThreads * kEach; i += kThreads) {
        Command& command = batch.commands()[i];
        if (!batch.settle(command, i % 3 == 0 ? Status::kMiss : Status::kOk, "why")) continue;
        last.fetch_add(1);
        batch.finish();
      }
    });
  }
  EXPECT_TRUE(batch.wait(kNever));
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(last.load(), 1);
  EXPECT_EQ(batch.withdrawn(batch.commands()[1]), Status::kCancelled) << "key 0 was the hole";
}

}  // namespace
}  // namespace kvferry::redis
