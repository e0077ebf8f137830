#include "connector/job_queue.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "connector/test_jobs.hpp"

namespace kvferry::connector {
namespace {

std::shared_ptr<Job> job_of(Verb verb, std::size_t keys, Nanos deadline = kNever,
                            bool prefix = false) {
  const std::vector<std::string> names(keys, "k");
  return make_job({.verb = verb, .deadline = deadline, .prefix = prefix}, names);
}

TEST(Job, ProgressCountsLeadingKeysOnly) {
  const auto job = job_of(Verb::kGet, 4);
  EXPECT_FALSE(job->complete(1, Status::kOk, 7));
  EXPECT_EQ(job->progress(), 0u);
  EXPECT_FALSE(job->complete(0, Status::kOk, 7));
  EXPECT_EQ(job->progress(), 2u);
  EXPECT_FALSE(job->complete(2, Status::kMiss, 0, "first"));
  EXPECT_TRUE(job->complete(3, Status::kOk, 0, "second")) << "the last one is told";
  EXPECT_EQ(job->progress(), 2u);
  EXPECT_FALSE(job->finished());
  EXPECT_FALSE(job->wait(monotonic_ns() + kMilli));
  job->finish();
  EXPECT_TRUE(job->wait(0));
  EXPECT_EQ(job->error().text, "first");
}

TEST(Job, BehindTheEndOfAPrefixNothingIsToBeDone) {
  const auto job = job_of(Verb::kGet, 3, kNever, true);
  EXPECT_FALSE(job->complete(1, Status::kMiss));
  EXPECT_EQ(job->withdrawn(0, 0), Status::kPending);
  EXPECT_EQ(job->withdrawn(2, 0), Status::kCancelled);
}

TEST(Job, ItIsLateFromItsDeadlineOn) {
  const auto job = job_of(Verb::kGet, 1, 100);
  EXPECT_EQ(job->withdrawn(0, 99), Status::kPending);
  EXPECT_EQ(job->withdrawn(0, 100), Status::kTimeout);
  job->cancel();
  EXPECT_EQ(job->withdrawn(0, 99), Status::kCancelled);
}

TEST(JobQueue, LanesDoNotWaitForEachOther) {
  JobQueue queue(100);
  const auto writes = job_of(Verb::kSet, 3);
  const auto look = job_of(Verb::kExists, 1);
  ASSERT_TRUE(queue.push(writes));
  ASSERT_TRUE(queue.push(look));
  EXPECT_EQ(queue.pull(JobLane::kSmall, false).job, look);
  EXPECT_FALSE(queue.pull(JobLane::kSmall, false));
  EXPECT_FALSE(queue.pull(JobLane::kRead, false));
  for (std::size_t index = 0; index < 3; ++index) {
    const Task task = queue.pull(JobLane::kWrite, false);
    EXPECT_EQ(task.job, writes);
    EXPECT_EQ(task.index, index);
  }
  EXPECT_FALSE(queue.pull(JobLane::kWrite, false));
}

TEST(JobQueue, AJobThatDoesNotFitIsRefusedWhole) {
  JobQueue queue(5);
  ASSERT_TRUE(queue.push(job_of(Verb::kGet, 3)));
  const Outcome refused = queue.push(job_of(Verb::kGet, 3));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kCapacity);
  EXPECT_TRUE(queue.push(job_of(Verb::kSet, 2)));
  ASSERT_TRUE(queue.pull(JobLane::kRead, false));
  EXPECT_TRUE(queue.push(job_of(Verb::kSet, 1)));
}

TEST(JobQueue, WhatIsLateOrCancelledComesOutWithoutBeingPulled) {
  JobQueue queue(100);
  const auto late = job_of(Verb::kGet, 2, 1);
  const auto cancelled = job_of(Verb::kGet, 3);
  const auto good = job_of(Verb::kGet, 1);
  for (const auto& job : {late, cancelled, good}) ASSERT_TRUE(queue.push(job));
  ASSERT_EQ(queue.pull(JobLane::kRead, false).job, late);  // one key is with a thread
  cancelled->cancel();
  const std::vector<Task> tasks = queue.take_ended();
  ASSERT_EQ(tasks.size(), 4u);
  EXPECT_EQ(tasks[0].job, late);
  EXPECT_EQ(tasks[0].index, 1u);
  EXPECT_EQ(tasks[3].job, cancelled);
  EXPECT_EQ(queue.pull(JobLane::kRead, false).job, good);
}

TEST(JobQueue, SleepersWakeForWorkForDeadlinesAndAtTheEnd) {
  JobQueue queue(100);
  std::vector<Task> late;
  std::thread keeper([&] { late = queue.take_ended(); });
  std::size_t pulled = 0;
  std::thread worker([&] {
    while (queue.pull(JobLane::kRead, true)) ++pulled;
  });
  const auto job = job_of(Verb::kSet, 1, monotonic_ns() + 5 * kMilli);
  ASSERT_TRUE(queue.push(job));
  keeper.join();
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].job, job);
  std::thread canceller([&] { late = queue.take_ended(); });
  const auto other = job_of(Verb::kSet, 2);
  ASSERT_TRUE(queue.push(other));
  other->cancel();
  queue.look();
  canceller.join();
  EXPECT_EQ(late.size(), 2u);
  std::thread last([&] { late = queue.take_ended(); });
  ASSERT_TRUE(queue.push(job_of(Verb::kExists, 2)));
  EXPECT_EQ(queue.close().size(), 2u) << "what nobody pulled";
  worker.join();
  last.join();
  EXPECT_EQ(pulled, 0u);
  EXPECT_EQ(queue.push(job).error().code, Errc::kClosed);
}

}  // namespace
}  // namespace kvferry::connector
