#include "connector/pooled.hpp"

#include <chrono>
#include <exception>
#include <system_error>

namespace kvferry::connector {

Outcome PooledConnector::launch(const Threads& threads) {
  static constexpr std::array<const char*, kLanes> kNames = {"kvferry-small-", "kvferry-read-",
                                                             "kvferry-write-"};
  try {
    run([](PooledConnector& self, JobLane) { self.keep(); }, JobLane::kSmall, "kvferry-keeper");
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      for (std::size_t index = 0; index < threads[lane]; ++index) {
        run([](PooledConnector& self, JobLane which) { self.work(which); },
            static_cast<JobLane>(lane), kNames[lane] + std::to_string(index));
      }
    }
  } catch (const std::system_error& problem) {
    close();
    return Error{Errc::kSystem, std::string("cannot start a thread: ") + problem.what()};
  }
  return Done{};
}

Outcome PooledConnector::launch_also(const std::string& name, Body body) {
  try {
    run(body, JobLane::kSmall, name);
  } catch (const std::system_error& problem) {
    close();
    return Error{Errc::kSystem, std::string("cannot start a thread: ") + problem.what()};
  }
  return Done{};
}

void PooledConnector::run(Body body, JobLane lane, const std::string& name) {
  // Keeps the object while the thread lives, however long that is.
  auto self = std::static_pointer_cast<PooledConnector>(shared_from_this());
  {
    const std::lock_guard lock(threads_mutex_);
    ++threads_alive_;
  }
  try {
    threads_.emplace_back(name, [self = std::move(self), body, lane]() mutable {
      body(*self, lane);
      {
        const std::lock_guard lock(self->threads_mutex_);
        --self->threads_alive_;
        self->thread_ended_.notify_all();
      }
    });
  } catch (...) {
    const std::lock_guard lock(threads_mutex_);
    --threads_alive_;
    throw;
  }
}

void PooledConnector::work(JobLane lane) {
  while (Task task = next(lane, true)) {
    KeyOutcome answer;
    try {
      answer = perform(*task.job, task.index);
    } catch (const std::exception& problem) {
      answer = {.status = Status::kServerError, .size = 0, .why = problem.what()};
    }
    complete(task, answer);
  }
}

Task PooledConnector::next(JobLane lane, bool wait) {
  while (Task task = queue_.pull(lane, wait)) {
    const Status status = task.job->withdrawn(task.index, monotonic_ns());
    if (status == Status::kPending) return task;
    complete(task, {.status = status, .size = 0, .why = {}});
  }
  return {};
}

void PooledConnector::complete(const Task& task, const KeyOutcome& answer) {
  const bool last = task.job->complete(task.index, answer.status, answer.size, answer.why);
  if (last) finished(*task.job);
}

void PooledConnector::keep() {
  for (;;) {
    const std::vector<Task> tasks = queue_.take_ended();
    if (tasks.empty()) return;
    for (const Task& task : tasks) {
      Status status = task.job->withdrawn(task.index, monotonic_ns());
      if (status == Status::kPending) status = Status::kCancelled;
      complete(task, {.status = status, .size = 0, .why = {}});
    }
  }
}

void PooledConnector::stop(Nanos until) {
  for (const Task& task : queue_.close()) {
    complete(task, {.status = Status::kCancelled, .size = 0, .why = "the connector was closed"});
  }
  const std::chrono::steady_clock::time_point moment{std::chrono::nanoseconds(until)};
  bool ended = false;
  {
    std::unique_lock lock(threads_mutex_);
    ended = thread_ended_.wait_until(lock, moment, [this] { return threads_alive_ == 0; });
  }
  for (Thread& thread : threads_) {
    if (ended) {
      thread.join();
    } else {
      thread.detach();  // it hangs in the kernel; what it needs it shares
    }
  }
  threads_.clear();
}

}  // namespace kvferry::connector
