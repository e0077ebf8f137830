#include "redis/work_queue.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::redis {
namespace {

std::shared_ptr<Batch> batch_of(Verb verb, const std::vector<std::string>& keys,
                                std::size_t size = 0, Nanos deadline = kNever) {
  auto batch = std::make_shared<Batch>(Batch::Options{.verb = verb, .deadline = deadline});
  for (const std::string& key : keys) {
    batch->add(key, {static_cast<std::byte*>(nullptr), size});
  }
  return batch;
}

// The keys that the lane gives out until it refuses, "a b c".
std::string pull_all(WorkQueue& queue, Lane lane) {
  std::string keys;
  while (const Work work = queue.pull(lane)) {
    keys += (keys.empty() ? "" : " ") + std::string(work.batch->key(*work.command));
  }
  return keys;
}

std::string keys_of(const std::vector<Work>& works) {
  std::string keys;
  for (const Work& work : works) {
    keys += (keys.empty() ? "" : " ") + std::string(work.batch->key(*work.command));
  }
  return keys;
}

TEST(WorkQueue, LanesDoNotWaitForEachOther) {
  WorkQueue queue(100);
  const auto reads = batch_of(Verb::kGet, {"r1", "r2"});
  const auto writes = batch_of(Verb::kSet, {"w"});
  const auto exists = batch_of(Verb::kExists, {"e"});
  const auto touches = batch_of(Verb::kTouch, {"t"});
  const auto deletes = batch_of(Verb::kDelete, {"d"});
  EXPECT_FALSE(queue.has_work(Lane::kSmall));
  for (const auto& batch : {reads, writes, exists, touches, deletes}) {
    ASSERT_TRUE(queue.push(batch));
  }
  EXPECT_EQ(queue.waiting(), 6u);
  EXPECT_EQ(pull_all(queue, Lane::kSmall), "e t d");
  EXPECT_FALSE(queue.has_work(Lane::kSmall));
  EXPECT_TRUE(queue.has_work(Lane::kRead));
  EXPECT_EQ(pull_all(queue, Lane::kWrite), "w");
  EXPECT_EQ(pull_all(queue, Lane::kRead), "r1 r2");
  EXPECT_EQ(queue.waiting(), 0u);
}

TEST(WorkQueue, WhatIsGivenBackGoesFirstAndInOrder) {
  WorkQueue queue(100);
  const auto first = batch_of(Verb::kSet, {"a", "b", "c"});
  const auto second = batch_of(Verb::kSet, {"d"});
  ASSERT_TRUE(queue.push(first));
  ASSERT_TRUE(queue.push(second));
  const Work a = queue.pull(Lane::kWrite);
  const Work b = queue.pull(Lane::kWrite);
  queue.put_back(a);
  queue.put_back(b);
  EXPECT_EQ(queue.waiting(), 4u);
  EXPECT_EQ(pull_all(queue, Lane::kWrite), "a b c d");
}

TEST(WorkQueue, ABatchThatDoesNotFitIsRefusedWhole) {
  WorkQueue queue(3);
  const auto two = batch_of(Verb::kGet, {"a", "b"});
  const auto more = batch_of(Verb::kSet, {"c", "d"});
  const auto one = batch_of(Verb::kTouch, {"e"});
  ASSERT_TRUE(queue.push(two));
  EXPECT_FALSE(queue.push(more)) << "the limit is over all lanes";
  EXPECT_FALSE(queue.has_work(Lane::kWrite));
  EXPECT_TRUE(queue.push(one));
  EXPECT_EQ(queue.waiting(), 3u);
}

TEST(WorkQueue, TheLimitHoldsWhenWorkComesBackToAFullQueue) {
  WorkQueue queue(2);
  const auto first = batch_of(Verb::kGet, {"a", "b"});
  const auto second = batch_of(Verb::kGet, {"c"});
  const auto third = batch_of(Verb::kGet, {"d"});
  ASSERT_TRUE(queue.push(first));
  const Work work = queue.pull(Lane::kRead);
  ASSERT_TRUE(queue.push(second));
  queue.put_back(work);  // a connection broke: it may always give back
  EXPECT_EQ(queue.waiting(), 3u);
  EXPECT_FALSE(queue.push(third));
}

TEST(WorkQueue, RemovesWhatWasCancelledOrIsPastItsDeadline) {
  WorkQueue queue(100);
  const auto lasting = batch_of(Verb::kGet, {"a", "b"});
  const auto expiring = batch_of(Verb::kGet, {"c", "d"}, 0, 1000);
  const auto cancelled = batch_of(Verb::kDelete, {"e"});
  for (const auto& batch : {expiring, lasting, cancelled}) ASSERT_TRUE(queue.push(batch));
  const Work c = queue.pull(Lane::kRead);
  EXPECT_EQ(keys_of(queue.remove(999, false)), "");
  cancelled->cancel();
  EXPECT_EQ(keys_of(queue.remove(999, false)), "e");
  queue.put_back(c);
  EXPECT_EQ(keys_of(queue.remove(1000, false)), "c d");
  EXPECT_EQ(queue.waiting(), 2u);
  EXPECT_EQ(pull_all(queue, Lane::kRead), "a b");
}

TEST(WorkQueue, RemovesEverything) {
  WorkQueue queue(100);
  const auto reads = batch_of(Verb::kGet, {"a", "b"});
  const auto writes = batch_of(Verb::kSet, {"c"});
  ASSERT_TRUE(queue.push(reads));
  ASSERT_TRUE(queue.push(writes));
  queue.put_back(queue.pull(Lane::kRead));
  EXPECT_EQ(keys_of(queue.remove(0, true)), "a b c");
  EXPECT_EQ(queue.waiting(), 0u);
  for (const Lane lane : {Lane::kSmall, Lane::kRead, Lane::kWrite}) {
    EXPECT_FALSE(queue.has_work(lane));
  }
}

TEST(WorkQueue, KeepsABatchOnlyWhileCommandsOfItWait) {
  WorkQueue queue(100);
  auto batch = batch_of(Verb::kGet, {"a", "b"});
  ASSERT_TRUE(queue.push(batch));
  EXPECT_EQ(batch.use_count(), 2);
  (void)queue.pull(Lane::kRead);
  EXPECT_EQ(batch.use_count(), 2);
  (void)queue.pull(Lane::kRead);
  EXPECT_EQ(batch.use_count(), 1);
}

TEST(WorkQueue, ATileIsSomeCommandsOfABatch) {
  WorkQueue queue(5);
  const auto batch = batch_of(Verb::kGet, {"a", "b", "c", "d"}, 0, 1000);
  ASSERT_TRUE(queue.push(batch, {1, 3}));
  EXPECT_EQ(queue.waiting(), 2u);
  const auto whole = batch_of(Verb::kGet, {"e"});
  ASSERT_TRUE(queue.push(whole));
  EXPECT_EQ(pull_all(queue, Lane::kRead), "b d e");
  ASSERT_TRUE(queue.push(batch, {0, 2, 3}));
  EXPECT_FALSE(queue.push(batch, {0, 1, 2})) << "three more are too many";
  EXPECT_EQ(keys_of({queue.pull(Lane::kRead)}), "a");
  EXPECT_EQ(keys_of(queue.remove(1000, false)), "c d") << "and not what other nodes have";
  EXPECT_EQ(queue.waiting(), 0u);
  EXPECT_FALSE(queue.has_work(Lane::kRead));
}

TEST(WorkQueue, ATileLeavesDeferredCommandsOut) {
  auto batch = std::make_shared<Batch>(Batch::Options{.verb = Verb::kSet, .framed = true});
  std::vector<std::byte> value(9 * kMiB);
  batch->add("striped", value);
  ASSERT_EQ(batch->commands().size(), batch->sendable() + 1);
  WorkQueue queue(100);
  std::vector<std::uint32_t> sendable;
  for (std::uint32_t index = 0; index < batch->commands().size(); ++index) {
    if (!batch->commands()[index].deferred) sendable.push_back(index);
  }
  ASSERT_TRUE(queue.push(batch, sendable));
  EXPECT_EQ(pull_all(queue, Lane::kWrite), "striped#2 striped#1");
}

}  // namespace
}  // namespace kvferry::redis
