#include "connector/file_usage.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace kvferry::connector {
namespace {

constexpr std::uint64_t kMagic = 0x3253554546565646;  // "FVVFEUS2": another layout gets another
// A change takes microseconds. Who holds the lock for longer was stopped, and we go on without it.
constexpr int kLockTries = 50;
constexpr std::chrono::microseconds kLockPause{200};

bool set_lock(int fd, short type) noexcept {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

}  // namespace

// What the file says and, if that was changed, back into it.
class FileUsage::Locked {
 public:
  explicit Locked(const FileUsage& usage) : usage_(usage), guard_(usage.mutex_) {
    if (!usage_.fd_) return;
    for (int tries = 0; tries < kLockTries; ++tries) {
      locked_ = set_lock(usage_.fd_.get(), F_WRLCK);
      if (locked_ || (errno != EAGAIN && errno != EACCES)) break;  // no locks on this file system
      std::this_thread::sleep_for(kLockPause);
    }
    Layout found;
    if (::pread(usage_.fd_.get(), &found, sizeof found, 0) == ssize_t{sizeof found} &&
        found.magic == kMagic) {
      usage_.known_ = found;
    }
  }
  ~Locked() {
    if (locked_) set_lock(usage_.fd_.get(), F_UNLCK);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  [[nodiscard]] bool known() const noexcept { return usage_.known_.magic == kMagic; }
  [[nodiscard]] Counters& counters() noexcept { return usage_.known_.counters; }
  [[nodiscard]] std::int64_t bytes() const noexcept {
    std::int64_t bytes = usage_.known_.counters.stored_bytes;
    for (const Reserved& one : usage_.known_.reserved) bytes += one.bytes;
    return bytes;
  }
  // More, or less, is reserved for this owner.
  void reserve(std::int64_t bytes) noexcept {
    Reserved* mine = find(usage_.owner_);
    if (mine == nullptr && bytes > 0) mine = find(0);
    if (mine == nullptr) return;
    *mine = {usage_.owner_, std::max<std::int64_t>(0, mine->bytes + bytes)};
  }
  void forget(Owner owner) noexcept {
    if (Reserved* const found = find(owner); found != nullptr) *found = {};
  }
  void forget_others() noexcept {
    for (Reserved& one : usage_.known_.reserved) {
      if (one.owner != usage_.owner_) one = {};
    }
  }
  void write() noexcept {
    if (!usage_.fd_) return;
    usage_.known_.magic = kMagic;
    // On a disk that is full each process counts for itself.
    [[maybe_unused]] const ssize_t written =
        ::pwrite(usage_.fd_.get(), &usage_.known_, sizeof usage_.known_, 0);
  }

 private:
  [[nodiscard]] Reserved* find(Owner owner) noexcept {
    for (Reserved& one : usage_.known_.reserved) {
      if (one.owner == owner) return &one;
    }
    return nullptr;
  }

  const FileUsage& usage_;
  const std::lock_guard<std::mutex> guard_;
  bool locked_ = false;
};

FileUsage::FileUsage(int directory, const char* name, Owner owner)
    : fd_(::openat(directory, name, O_RDWR | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600)),
      owner_(owner) {
  Locked now(*this);
  if (!now.known()) now.write();  // new, or damaged: a scan counts anew
}

bool FileUsage::in_place() const noexcept {
  struct stat found{};
  return !fd_ || (::fstat(fd_.get(), &found) == 0 && found.st_nlink > 0);
}

bool FileUsage::reserve(std::int64_t bytes, std::uint64_t capacity) noexcept {
  Locked now(*this);
  if (capacity != 0 && now.bytes() + bytes > static_cast<std::int64_t>(capacity)) return false;
  now.reserve(bytes);
  now.write();
  return true;
}

void FileUsage::give_back(std::int64_t bytes) noexcept {
  Locked now(*this);
  now.reserve(-bytes);
  now.write();
}

void FileUsage::stored(std::int64_t bytes, std::int64_t replaced) noexcept {
  Locked now(*this);
  Counters& counters = now.counters();
  counters.stored_bytes += bytes - std::max<std::int64_t>(replaced, 0);
  if (replaced < 0) ++counters.stored_keys;
  now.reserve(-bytes);
  now.write();
}

void FileUsage::removed(std::int64_t bytes) noexcept {
  Locked now(*this);
  now.counters().stored_bytes -= bytes;
  --now.counters().stored_keys;
  now.write();
}

std::int64_t FileUsage::bytes() const noexcept {
  return std::max<std::int64_t>(0, Locked(*this).bytes());
}

std::int64_t FileUsage::keys() const noexcept {
  return std::max<std::int64_t>(0, note().stored_keys);
}

void FileUsage::forget(Owner owner) noexcept {
  Locked now(*this);
  now.forget(owner);
  now.write();
}

void FileUsage::forget_others() noexcept {
  Locked now(*this);
  now.forget_others();
  now.write();
}

FileUsage::Counters FileUsage::note() const noexcept { return Locked(*this).counters(); }

void FileUsage::correct(const Counters& before, std::int64_t bytes, std::int64_t keys,
                        std::int64_t now_ms) noexcept {
  Locked now(*this);
  Counters& counters = now.counters();
  // By the difference: what others counted meanwhile stays counted.
  counters.stored_bytes += bytes - before.stored_bytes;
  counters.stored_keys += keys - before.stored_keys;
  counters.scanned_at_ms = now_ms;
  now.write();
}

}  // namespace kvferry::connector
