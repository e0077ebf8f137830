#pragma once
// The file driver: a value a file, on a local disk that several processes may share.
//
// With O_DIRECT the payload moves between the disk and the caller's memory without a copy; lengths
// that are no whole blocks end in a block of ours, and memory that does not begin on a boundary
// goes through the kernel's cache. What a reader does not find exactly as it was written is
// CORRUPT or SIZE_MISMATCH: counted by cause, and deleted.
//
// Threads: some read, some write, each with several operations under way where there is io_uring;
// one does small commands, one scans. A disk that hangs keeps the buffers that it was given: such
// a job finishes when the kernel lets it go, however late, and Job::wait() returns in time.
// A directory that goes away is looked for every second, and opened anew; meanwhile all keys are
// kUnavailable. Something in the place of one value is named once: that value is absent, and is not
// kept.
// Limits: capacity_bytes for the whole directory; a SET beyond it is kServerError.
// Failure: what the file system refuses is kServerError with the words of the errno; want of room
// is one whose text begins with "OOM", as that of a server does.

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "connector/block_io.hpp"
#include "connector/file_format.hpp"
#include "connector/file_store.hpp"
#include "connector/pooled.hpp"

namespace kvferry::connector {

enum class Direct : std::uint8_t { kAuto, kOn, kOff };  // O_DIRECT where it works; always; never

struct FileOptions {
  std::string path{};
  std::uint64_t capacity_bytes = 0;  // 0: no limit but the disk
  Fsync fsync = Fsync::kNever;
  Direct direct = Direct::kAuto;
  bool ring = true;                   // try io_uring
  Nanos rescan_after = 30 * kSecond;  // how old a count may be while values are stored
  std::size_t queued_keys_max = PooledConnector::kQueuedKeysMax;
  FileSteps* steps = nullptr;  // for tests; outlives the connector
};

class FileConnector final : public PooledConnector {
 public:
  // Fails with: kInvalidArgument, kSystem.
  static Result<std::shared_ptr<Connector>> open(Space space, const FileOptions& options);
  FileConnector(Space space, EventFd event, const FileOptions& options,
                std::shared_ptr<FileStore> store, std::size_t direct_alignment);
  ~FileConnector() override;

  [[nodiscard]] bool available() const override;
  [[nodiscard]] Result<Usage> usage() const override;
  Result<ScanPage> scan(std::uint64_t cursor) override;
  Result<std::vector<std::pair<Identity, std::string>>> descriptions() override;
  // "direct, io_uring" and the like.
  [[nodiscard]] std::string mode() const override;

 private:
  struct Slot;

  void work(JobLane lane) override;
  KeyOutcome perform(Job& job, std::size_t index) override;
  void stop(Nanos until) override;
  [[nodiscard]] std::unique_ptr<BlockIo> make_io();
  [[nodiscard]] bool goes_straight(MutableBytes memory) const noexcept;

  // The steps of a value on its way; each returns whether it is complete already.
  bool begin(Slot& slot, Task task);
  bool begin_get(Slot& slot);
  bool begin_set(Slot& slot);
  bool advance(Slot& slot);
  bool received(Slot& slot);
  bool written(Slot& slot);

  KeyOutcome present(FileStore& store, const std::string& name, bool touch);
  bool done(Slot& slot, KeyOutcome answer);
  bool failed(Slot& slot, const char* action, int error);
  bool refuse(Slot& slot, codec::FrameFault fault, std::uint64_t size);
  [[nodiscard]] KeyOutcome failure(const char* action, int error);
  // What is in the place of a value is nothing that can be read or replaced: names it. The answer
  // of a SET; everybody else is told that the value is absent.
  KeyOutcome in_the_way(const std::string& name, int error);
  [[nodiscard]] bool is_in_the_way(FileStore& store, const std::string& name);
  [[nodiscard]] bool read_head(const std::string& name, FileHead& head) const;
  [[nodiscard]] bool expired(const FileHead& head) const noexcept;
  void keep_watch();
  void look_for_directory();
  void count();
  [[nodiscard]] std::string away() const;
  [[nodiscard]] bool is_away() const noexcept { return away_.load(std::memory_order_relaxed); }

  const FileOptions options_;
  CurrentStore store_;
  std::atomic<std::size_t> alignment_;  // what O_DIRECT wants of memory; 0: it is not used
  const std::size_t file_bytes_;        // of a value that does not expire
  std::atomic<bool> ring_;
  std::atomic<int> failures_{0};  // in a row
  std::atomic<Nanos> failed_at_{0};
  std::atomic<bool> away_{false};  // the directory is
  std::atomic<std::size_t> obstacles_count_{0};

  mutable std::mutex place_mutex_;
  std::string why_away_;
  Nanos away_since_ = 0;             // of the thread that watches
  std::set<std::string> obstacles_;  // names whose place something else has

  std::atomic<bool> stopped_{false};
  std::mutex count_mutex_;
  std::condition_variable count_soon_;
  bool stored_since_ = false;  // since the last count
  bool look_now_ = false;      // whether the directory is there
};

}  // namespace kvferry::connector
