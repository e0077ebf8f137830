#pragma once
// PooledConnector: a connector whose work is done by threads of its own, one key at a time.
//
// A driver says how one key is done: perform(). Small commands, reads and writes have threads of
// their own, so that none waits behind the others; one more thread, which does no work, ends what
// is late although all others hang.
//
// Lifetime: the threads share the object. close() must be called; a thread that hangs in the kernel
// is then left behind, with the object, until the kernel lets it go.

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/thread.hpp"
#include "connector/connector.hpp"
#include "connector/job_queue.hpp"

namespace kvferry::connector {

// The outcome of one key.
struct KeyOutcome {
  Status status = Status::kOk;
  std::uint64_t size = 0;  // of the value, where that is known
  std::string why;
};

class PooledConnector : public Connector {
 public:
  static constexpr std::size_t kQueuedKeysMax = 1'000'000;

 protected:
  using Threads = std::array<std::size_t, kLanes>;  // of each lane

  PooledConnector(Space space, EventFd event, std::size_t queued_keys_max)
      : Connector(std::move(space), std::move(event)), queue_(queued_keys_max) {}

  // Starts the threads. Requires: a shared_ptr owns this. Fails with: kSystem.
  Outcome launch(const Threads& threads);
  // One thread more. It must end soon after stop() was called.
  using Body = void (*)(PooledConnector&, JobLane);
  Outcome launch_also(const std::string& name, Body body);

  // Does one key. Any of the lane's threads; may block; an exception becomes kServerError.
  virtual KeyOutcome perform(Job& job, std::size_t index) = 0;
  // The body of a lane's thread: one key after another, until the queue is closed.
  virtual void work(JobLane lane);

  // The next key that is to be done; completes what was withdrawn. Empty: see JobQueue::pull().
  Task next(JobLane lane, bool wait);
  void complete(const Task& task, const KeyOutcome& answer);

  Outcome start(const std::shared_ptr<Job>& job) override { return queue_.push(job); }
  void withdraw(Job&) override { queue_.look(); }
  void stop(Nanos until) override;

 private:
  void run(Body body, JobLane lane, const std::string& name);
  void keep();

  JobQueue queue_;
  std::mutex threads_mutex_;
  std::condition_variable thread_ended_;
  std::size_t threads_alive_ = 0;
  std::vector<Thread> threads_;
};

}  // namespace kvferry::connector
