#pragma once
// FileStore: the directory of a file store. Which files there are, how they come and go.
//
//   <root>/format            which format this is
//   <root>/usage             counters, see file_usage.hpp
//   <root>/ab/<16 hex>       a value, see file_format.hpp; 256 directories
//   <root>/tmp/<owner>-<n>   a value that is being written
//   <root>/tmp/<owner>.owner locked while the owner lives; what the dead left is swept at open()
//   <root>/identities/<hex>  descriptions
//
// A value appears by rename, so that a reader sees all of it or none; after a power cut its blocks
// may be wrong all the same, and the checksums tell.
//
// Threads: any, after open(). Failure: an errno; the caller has the words.

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "connector/file_place.hpp"
#include "connector/file_usage.hpp"

namespace kvferry::connector {

// When a value is written to the disk itself. A cache needs no more than kNever: after a power cut
// what is torn is found so.
enum class Fsync : std::uint8_t {
  kNever,  // whenever the kernel likes
  kData,   // before it becomes visible
  kFull,   // and its name, before the SET is OK
};

// For tests: told of each step that changes the directory; what it returns, if not 0, is the errno
// that the step fails with.
class FileSteps {
 public:
  enum class Step : std::uint8_t { kCreate, kWrite, kSync, kRename, kSyncDirectory, kRemove };
  virtual ~FileSteps() = default;
  virtual int before(Step step, const std::string& name) = 0;
};

class FileStore {
 public:
  // `steps` may be null; else it outlives the store. `before`: where a store was open under this
  // path; then nothing is made or opened that is not usable() there.
  // Fails with: kSystem, kInvalidArgument (the directory has something else in it).
  static Result<std::shared_ptr<FileStore>> open(const std::string& path,
                                                 std::uint64_t capacity_bytes, FileSteps* steps,
                                                 const FilePlace* before = nullptr);
  ~FileStore();
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  // Whether the path leads here, and nothing that is needed for writing was removed.
  [[nodiscard]] bool in_place() const;
  // Whether the path leads here.
  [[nodiscard]] bool here() const { return place_.holds(root_.get()); }
  // Whether it was removed, and not only moved.
  [[nodiscard]] bool removed() const { return FilePlace::removed(root_.get()); }
  [[nodiscard]] const FilePlace& place() const noexcept { return place_; }

  // What O_DIRECT wants of memory here, in bytes; 0: it does not work.
  [[nodiscard]] std::size_t direct_alignment();

  // A file that is being written; its room is reserved.
  struct Temporary {
    UniqueFd fd;
    std::string name;
    std::int64_t size_bytes = 0;
  };
  // Names are those of file_name(). Each returns 0 or an errno. What is no file is neither read nor
  // replaced, and nobody waits for it: EISDIR, ELOOP (a link), ENXIO (anything else).
  int open_value(const std::string& name, int flags, UniqueFd& fd) const;
  int create(std::int64_t size_bytes, int flags, Temporary& temporary);
  int publish(Temporary& temporary, const std::string& name, bool sync_directory);
  void discard(Temporary& temporary);
  int remove(const std::string& name);
  int facts(const std::string& name, struct stat& found) const;
  // The same, and whether it may be read.
  int readable(const std::string& name) const;
  // It was of use: makes it young.
  void touch(const std::string& name) const;
  int step(FileSteps::Step what, const std::string& name) {
    return steps_ == nullptr ? 0 : steps_->before(what, name);
  }

  // Whether there is room for so many bytes; then it is taken, until publish() or discard().
  [[nodiscard]] bool reserve(std::int64_t bytes);
  void give_back(std::int64_t bytes);
  [[nodiscard]] const FileUsage& usage() const noexcept { return *usage_; }
  [[nodiscard]] std::uint64_t capacity_bytes() const noexcept { return capacity_bytes_; }

  // Counts all files. `visit` sees each name and its facts, and may remove it.
  using Visit = std::function<void(const std::string& name, const struct stat& facts)>;
  void scan(const Visit& visit, const std::atomic<bool>& stopped);
  // The names in one of the 256 directories.
  [[nodiscard]] std::vector<std::string> list(unsigned directory) const;
  [[nodiscard]] std::int64_t scanned_at_ms() const noexcept { return usage_->note().scanned_at_ms; }

  int describe(const std::string& identity_hex, const std::string& text);
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> descriptions() const;

 private:
  FileStore(const std::string& path, UniqueFd root, UniqueFd tmp, std::uint64_t capacity_bytes,
            FileSteps* steps);
  int own();
  bool give_up_one();
  void sweep();

  const UniqueFd root_;
  const UniqueFd tmp_;
  const FilePlace place_;
  const std::uint64_t capacity_bytes_;
  FileSteps* const steps_;
  std::unique_ptr<FileUsage> usage_;
  UniqueFd lock_;      // of the owner file
  std::string owner_;  // 16 hex digits
  std::atomic<std::uint64_t> created_{0};
};

// The store that is open now. Threads: any.
class CurrentStore {
 public:
  explicit CurrentStore(std::shared_ptr<FileStore> store) : store_(std::move(store)) {}
  [[nodiscard]] std::shared_ptr<FileStore> get() const {
    const std::lock_guard lock(mutex_);
    return store_;
  }
  std::shared_ptr<FileStore> operator->() const { return get(); }
  // The one before it, to be let go of without the lock.
  std::shared_ptr<FileStore> exchange(std::shared_ptr<FileStore> store) {
    const std::lock_guard lock(mutex_);
    return std::exchange(store_, std::move(store));
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<FileStore> store_;
};

// Whether an error is about the place of one value, and not about the disk; and what is there then.
[[nodiscard]] bool is_of_one_place(int error) noexcept;
[[nodiscard]] std::string_view obstacle(int error) noexcept;

// Milliseconds since 1970.
[[nodiscard]] std::int64_t wall_clock_ms() noexcept;

}  // namespace kvferry::connector
