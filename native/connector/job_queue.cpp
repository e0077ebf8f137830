#include "connector/job_queue.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvferry::connector {

JobLane lane_of(Verb verb) noexcept {
  if (verb == Verb::kGet) return JobLane::kRead;
  return verb == Verb::kSet ? JobLane::kWrite : JobLane::kSmall;
}

Outcome JobQueue::push(const std::shared_ptr<Job>& job) {
  const auto lane = static_cast<std::size_t>(lane_of(job->options().verb));
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Error{Errc::kClosed, "the connector is closed"};
    if (job->size() > keys_max_ - std::min(waiting_, keys_max_)) {
      return Error{Errc::kCapacity, std::to_string(waiting_) + " keys are waiting, " +
                                        std::to_string(keys_max_) + " is the limit"};
    }
    waiting_ += job->size();
    lanes_[lane].push_back({job, 0});
    looking_ = true;  // its deadline may be the earliest
  }
  if (job->size() == 1) {
    more_[lane].notify_one();
  } else {
    more_[lane].notify_all();
  }
  due_.notify_one();
  return Done{};
}

Task JobQueue::pull(JobLane which, bool wait) {
  const auto lane = static_cast<std::size_t>(which);
  std::deque<Entry>& entries = lanes_[lane];
  std::unique_lock lock(mutex_);
  if (wait) more_[lane].wait(lock, [&] { return closed_ || !entries.empty(); });
  if (closed_ || entries.empty()) return {};
  Entry& entry = entries.front();
  Task task{entry.job, entry.next++};
  --waiting_;
  if (entry.next == entry.job->size()) entries.pop_front();
  return task;
}

std::vector<Task> JobQueue::take_ended() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (closed_) return {};
    if (auto tasks = take_withdrawn(monotonic_ns()); !tasks.empty()) return tasks;
    looking_ = false;
    const auto changed = [this] { return closed_ || looking_; };
    const Nanos deadline = next_deadline();
    if (deadline == kNever) {
      due_.wait(lock, changed);
    } else {
      due_.wait_until(
          lock, std::chrono::steady_clock::time_point{std::chrono::nanoseconds(deadline)}, changed);
    }
  }
}

void JobQueue::look() {
  {
    const std::lock_guard lock(mutex_);
    looking_ = true;
  }
  due_.notify_one();
}

std::vector<Task> JobQueue::close() {
  std::vector<Task> left;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (auto& entries : lanes_) {
      for (Entry& entry : std::exchange(entries, {})) {
        for (; entry.next < entry.job->size(); ++entry.next)
          left.push_back({entry.job, entry.next});
      }
    }
    waiting_ = 0;
  }
  for (auto& more : more_) more.notify_all();
  due_.notify_all();
  return left;
}

std::vector<Task> JobQueue::take_withdrawn(Nanos now) {
  std::vector<Task> tasks;
  for (auto& entries : lanes_) {
    std::erase_if(entries, [&](Entry& entry) {
      const Job& job = *entry.job;
      // Of the rest of a job all are withdrawn or none: the cursor is behind a prefix's end or not.
      if (job.withdrawn(entry.next, now) == Status::kPending) return false;
      for (; entry.next < job.size(); ++entry.next) tasks.push_back({entry.job, entry.next});
      return true;
    });
  }
  waiting_ -= tasks.size();
  return tasks;
}

Nanos JobQueue::next_deadline() const {
  Nanos earliest = kNever;
  for (const auto& entries : lanes_) {
    for (const Entry& entry : entries) {
      earliest = std::min(earliest, entry.job->options().deadline);
    }
  }
  return earliest;
}

}  // namespace kvferry::connector
