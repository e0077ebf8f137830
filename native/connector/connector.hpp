#pragma once
// Connector: the interface of stores that lie behind a cache, and what all drivers share.
//
// A connector moves values of one length under keys of one space. Jobs go in, completions come out;
// a driver implements start() and the rest that is virtual, see docs/guides/new-connector.md.
//
// Threads: every public method from any thread; drain() from one at a time. Nothing blocks but
// Job::wait() and close(). Buffers of a job belong to it until it is finished (see job.hpp).
// After fork() the child's copy refuses every call (kForked) and must be leaked, not destroyed: its
// threads exist in the parent only.
// Failure: a submission fails with an Error, or its job finishes exactly once, whatever happens.
// What a store does wrong is a status with a text, never an exception.

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/completions.hpp"
#include "base/log_sink.hpp"
#include "base/result.hpp"
#include "codec/frame.hpp"
#include "connector/job.hpp"

namespace kvferry::connector {

using Identity = std::array<std::byte, 16>;

// What a connector is opened with.
struct Space {
  std::string prefix;                // goes before every key; may be empty
  Identity identity{};               // what the bytes must be comparable with
  std::size_t value_size_bytes = 0;  // of every value
  std::string description;           // the identity in words, kept in the store for whoever wonders
};

// What the whole store holds, other spaces included.
struct Usage {
  std::uint64_t used_bytes = 0;
  std::optional<std::uint64_t> capacity_bytes;  // none: no limit is set
  std::optional<std::uint64_t> keys;            // none: not known
};

// Some of what a space has in its store; `next` continues, 0 when there is no more.
struct ScanPage {
  struct Entry {
    std::string key;  // without the prefix
    Nanos age = 0;    // since its last use
  };
  std::vector<Entry> entries;
  std::uint64_t next = 0;
};

// Counters since the connector was opened; each is read on its own.
struct ConnectorStats {
  using Counter = std::atomic<std::uint64_t>;
  static constexpr std::size_t kStatuses = 8;
  static constexpr std::size_t kFaults = codec::kFrameFaultsCount;

  Counter jobs{0};
  Counter bytes_read{0};
  Counter bytes_written{0};
  std::array<Counter, kStatuses> keys{};  // by status
  std::array<Counter, kFaults> faults{};  // values that were not taken, by cause
  Counter keys_unasked{0};                // answered without asking the store
};

class Connector : public std::enable_shared_from_this<Connector> {
 public:
  virtual ~Connector() = default;
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  // Hands a job over and names it. With `job->quiet` the caller wait()s for it; otherwise it comes
  // back through drain().
  // Fails with: kClosed, kForked, kCapacity, kInvalidArgument (a buffer of another length).
  Result<std::uint64_t> submit(const std::shared_ptr<Job>& job);

  // Withdraws a job; it still finishes, soon: when no buffer of it can be touched any more.
  // Unknown or finished ids are ignored.
  void cancel(std::uint64_t id);

  // How many leading keys of a job are OK by now; their buffers are final.
  [[nodiscard]] virtual std::size_t progress(const Job& job) const { return job.progress(); }

  // Readable while finished jobs wait for drain().
  [[nodiscard]] int event_fd() const noexcept { return completions_.fd(); }
  std::vector<std::shared_ptr<Job>> drain() { return completions_.drain(); }

  // Whether a key is certainly absent, as far as that is known without asking.
  [[nodiscard]] virtual bool absent(std::string_view /*key*/) const { return false; }
  // How many leading keys are there in all likelihood, where all is known without asking: a key
  // behind them is certainly absent, or there is none. Nothing: somebody has to be asked.
  [[nodiscard]] virtual std::optional<std::size_t> leading(
      std::span<const std::string_view> /*keys*/) const {
    return std::nullopt;
  }
  // Whether jobs may have buffers that are named when values come.
  [[nodiscard]] virtual bool pages_on_demand() const { return false; }
  // How the driver works here, for people.
  [[nodiscard]] virtual std::string mode() const { return {}; }
  // How values are written from now on, where the driver encodes any. It reads them all.
  virtual void write_as(codec::Codec /*codec*/) noexcept {}
  // Whether the store can be asked at all.
  [[nodiscard]] virtual bool available() const { return true; }
  // From memory, without I/O. Fails with: kInvalidArgument where only a server could tell.
  [[nodiscard]] virtual Result<Usage> usage() const;
  // What the space has in the store, page by page from cursor 0; I/O in the calling thread.
  virtual Result<ScanPage> scan(std::uint64_t cursor);
  // Descriptions of every identity that has used the store; I/O in the calling thread.
  virtual Result<std::vector<std::pair<Identity, std::string>>> descriptions();

  // Cancels everything and ends the threads. Waits for them up to kCloseWait: a thread that hangs
  // in the kernel goes on owning its buffers, and its job stays unfinished. Idempotent.
  void close();
  static constexpr Nanos kCloseWait = 2 * kSecond;

  [[nodiscard]] bool forked() const noexcept;
  [[nodiscard]] const Space& space() const noexcept { return space_; }
  [[nodiscard]] const ConnectorStats& stats() const noexcept { return stats_; }
  [[nodiscard]] LogSink& log() noexcept { return log_; }
  [[nodiscard]] std::size_t running() const;

 protected:
  Connector(Space space, EventFd event);

  // Takes a job over. Never blocks. Every key of it completes, even after cancel() and stop().
  // Fails with: kCapacity and others; then nothing was taken.
  virtual Outcome start(const std::shared_ptr<Job>& job) = 0;
  // The job was cancelled: what nobody has begun should complete soon.
  virtual void withdraw(Job& job) = 0;
  // Ends the threads, at the moment `until` at the latest. All jobs are cancelled already.
  virtual void stop(Nanos until) = 0;

  // The last key of a job is complete. No lock that start() or withdraw() take may be held.
  void finished(Job& job);
  // A value was not taken: counts the cause and logs it. The driver deletes it, if it may.
  void refused(codec::FrameFault fault, std::string_view key);
  void count_unasked(std::size_t keys) noexcept {
    stats_.keys_unasked.fetch_add(keys, std::memory_order_relaxed);
  }

 private:
  const Space space_;
  const pid_t owner_pid_;
  LogSink log_;
  Completions<Job> completions_;
  ConnectorStats stats_;
  mutable std::mutex mutex_;
  // Shared with the driver's threads and, until it has drained, with the caller.
  std::unordered_map<std::uint64_t, std::shared_ptr<Job>> running_;
  std::uint64_t next_id_ = 1;
  bool closed_ = false;
};

// The key as it is in the store.
[[nodiscard]] std::string full_key(const Space& space, std::string_view key);

}  // namespace kvferry::connector
