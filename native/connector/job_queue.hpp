#pragma once
// JobQueue: the keys of a driver's jobs that no thread has begun yet.
//
// Three lanes never wait for each other: small commands, reads and writes. In a lane jobs are
// served in their order, and threads pull single keys, so that a batch is as quick as the store.
//
// Threads: any. Lifetime: jobs are shared with whoever works on a key of them.
// Limits: keys_max; a job that does not fit is refused whole.

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.hpp"
#include "connector/job.hpp"

namespace kvferry::connector {

enum class JobLane : std::uint8_t { kSmall = 0, kRead = 1, kWrite = 2 };
inline constexpr std::size_t kLanes = 3;

[[nodiscard]] JobLane lane_of(Verb verb) noexcept;

// One key of a job. Empty: there is none.
struct Task {
  std::shared_ptr<Job> job;
  std::size_t index = 0;
  explicit operator bool() const noexcept { return job != nullptr; }
};

class JobQueue {
 public:
  explicit JobQueue(std::size_t keys_max) : keys_max_(keys_max) {}

  // Fails with: kCapacity, kClosed; nothing was taken.
  Outcome push(const std::shared_ptr<Job>& job);

  // Takes the next key of the lane; with `wait` sleeps until there is one. Empty: there is none,
  // or the queue was closed. What was withdrawn meanwhile comes all the same: look at it.
  Task pull(JobLane lane, bool wait);

  // Sleeps until keys are withdrawn or late although nobody pulls them, and takes those. Empty:
  // the queue was closed. For one thread.
  std::vector<Task> take_ended();
  // A job was cancelled: take_ended() looks again.
  void look();

  // Ends all sleeping; takes what is left. Nothing comes in any more.
  std::vector<Task> close();

 private:
  struct Entry {
    std::shared_ptr<Job> job;
    std::size_t next = 0;
  };
  std::vector<Task> take_withdrawn(Nanos now);
  [[nodiscard]] Nanos next_deadline() const;

  const std::size_t keys_max_;
  mutable std::mutex mutex_;
  std::array<std::deque<Entry>, kLanes> lanes_;
  std::array<std::condition_variable, kLanes> more_;
  std::condition_variable due_;
  std::size_t waiting_ = 0;
  bool looking_ = false;  // take_ended() should look again
  bool closed_ = false;
};

}  // namespace kvferry::connector
