#include "mem/shared_segment.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace kvferry::mem {
namespace {

// A signal undoes what one fallocate() has done so far, so it is asked for pieces.
constexpr std::size_t kCommitPieceBytes = 32 * kMiB;
// The kernel keeps other threads from mapping and unmapping meanwhile.
constexpr std::size_t kPopulatePieceBytes = 16 * kMiB;
constexpr int kInterruptedMax = 1000;  // signals during one piece; more are a failure
constexpr std::uint64_t kLockMax = INT64_MAX - 1;
constexpr const char* kLockTooLarge = "a lock's number is below 2^63 - 1";

constexpr std::size_t round_down(std::size_t size, std::size_t multiple) {
  return size / multiple * multiple;
}
constexpr std::size_t round_up(std::size_t size, std::size_t multiple) {
  return round_down(size + multiple - 1, multiple);
}

Error failed(const char* what, const std::string& path, int sys_errno) {
  return system_error(std::string("cannot ") + what + " " + path, sys_errno);
}

Error refused(const std::string& path, const char* why) {
  return {Errc::kInvalidArgument, path + " is refused: " + why};
}

UniqueFd open_file(const std::string& path, int more_flags) {
  // A segment is opened for locks and mappings only, so waiting for a FIFO's other end is a bug.
  return UniqueFd(
      ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | more_flags, 0600));
}

Outcome check(int file, const std::string& path, std::size_t size_bytes) {
  struct stat is{};
  if (::fstat(file, &is) != 0) return failed("look at", path, errno);
  if (!S_ISREG(is.st_mode)) return refused(path, "it is not a regular file");
  if (is.st_uid != ::geteuid()) return refused(path, "it belongs to another user");
  if ((is.st_mode & (S_IRWXG | S_IRWXO)) != 0) return refused(path, "others may open it");
  if (is.st_nlink == 0) return refused(path, "it was removed");
  if (static_cast<std::size_t>(is.st_size) != size_bytes || size_bytes == 0) {
    return refused(path, "it has another length");
  }
  return Done{};
}

struct flock one_byte(std::uint64_t byte) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return lock;
}

Outcome take_lock(int file, const std::string& path, std::uint64_t byte) {
  if (byte > kLockMax) return Error{Errc::kInvalidArgument, kLockTooLarge};
  struct flock lock = one_byte(byte);
  if (::fcntl(file, F_OFD_SETLK, &lock) == 0) return Done{};
  if (errno == EAGAIN || errno == EACCES) {
    return Error{Errc::kCapacity,
                 path + " is in use: another process has the lock of byte " + std::to_string(byte)};
  }
  return failed("lock", path, errno);
}

struct Kind {
  std::size_t block_size_bytes;
  HugePages huge_pages;
};

Result<Kind> kind_of(int file, const std::string& path) {
  struct statfs system{};
  struct stat is{};
  if (::fstatfs(file, &system) != 0 || ::fstat(file, &is) != 0) {
    return failed("look at", path, errno);
  }
  if (system.f_type == HUGETLBFS_MAGIC) {
    return Kind{static_cast<std::size_t>(system.f_bsize), HugePages::kHugetlb};
  }
  // A tmpfs that uses huge pages says so by the size that it likes best.
  const bool huge = is.st_blksize >= static_cast<blksize_t>(Arena::kHugePageSizeBytes);
  return Kind{static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)),
              huge ? HugePages::kTransparent : HugePages::kNone};
}

Error no_memory(const std::string& path, std::size_t size_bytes, bool hugetlb, int sys_errno) {
  const char* advice =
      hugetlb ? "too few huge pages are reserved; raise vm.nr_hugepages"
              : "its file system (/dev/shm) or the memory limit is too small; enlarge it (mount -o "
                "remount,size=..., in containers --shm-size)";
  Error error = failed("get memory for", path, sys_errno);
  error.context +=
      " (" + std::to_string(size_bytes) + " bytes): " + advice + ", or give the cache less memory";
  return error;
}

}  // namespace

Result<std::unique_ptr<SharedSegment>> SharedSegment::create(std::string path,
                                                             std::size_t size_bytes) {
  if (size_bytes == 0 || size_bytes > SIZE_MAX / 4) {
    return Error{Errc::kInvalidArgument,
                 "a shared segment has 1 byte to half of what can be named"};
  }
  UniqueFd file = open_file(path, O_CREAT | O_EXCL);
  if (!file) return failed("create", path, errno);
  auto made = [&]() -> Result<std::unique_ptr<SharedSegment>> {
    if (::fchmod(file.get(), 0600) != 0) return failed("protect", path, errno);
    const auto kind = kind_of(file.get(), path);
    if (!kind) return kind.error();
    const std::size_t whole = round_up(size_bytes, kind->block_size_bytes);
    if (::ftruncate(file.get(), static_cast<off_t>(whole)) != 0) {
      return failed("size", path, errno);
    }
    return take(std::move(file), path, whole, kOwnerLock, Role::kOwner);
  }();
  if (!made) ::unlink(path.c_str());
  return made;
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::open(std::string path,
                                                           std::size_t size_bytes) {
  UniqueFd file = open_file(path, 0);
  if (!file) return failed("open", path, errno);
  return take(std::move(file), std::move(path), size_bytes, kOwnerLock, Role::kOwner);
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::attach(std::string path,
                                                             std::size_t size_bytes,
                                                             std::uint64_t lock) {
  UniqueFd file = open_file(path, 0);
  if (!file) return failed("open", path, errno);
  return take(std::move(file), std::move(path), size_bytes, lock, Role::kClient);
}

Result<std::unique_ptr<SharedSegment>> SharedSegment::take(UniqueFd file, std::string path,
                                                           std::size_t size_bytes,
                                                           std::uint64_t lock, Role role) {
  if (auto right = check(file.get(), path, size_bytes); !right) return right.error();
  if (auto taken = take_lock(file.get(), path, lock); !taken) return taken.error();
  // Whoever removes files without an owner holds that lock meanwhile; it may just have done so.
  if (auto right = check(file.get(), path, size_bytes); !right) return right.error();
  const auto kind = kind_of(file.get(), path);
  if (!kind) return kind.error();
  auto arena = Arena::share(file.get(), size_bytes, kind->huge_pages);
  if (!arena) return arena.error();
  return std::unique_ptr<SharedSegment>(new SharedSegment(
      std::move(file), std::move(path), std::move(*arena), kind->block_size_bytes, role));
}

SharedSegment::SharedSegment(UniqueFd file, std::string path, Arena arena,
                             std::size_t block_size_bytes, Role role) noexcept
    : file_(std::move(file)),
      path_(std::move(path)),
      arena_(std::move(arena)),
      block_size_bytes_(block_size_bytes),
      role_(role),
      process_(::getpid()) {}

SharedSegment::~SharedSegment() {
  if (!kept_) unlink();
}

bool SharedSegment::contains(std::size_t offset, std::size_t size_bytes) const noexcept {
  return offset <= this->size_bytes() && size_bytes <= this->size_bytes() - offset;
}

Outcome SharedSegment::commit(std::size_t offset, std::size_t size_bytes) {
  if (!contains(offset, size_bytes)) {
    return Error{Errc::kInvalidArgument, "commit: the range is outside of the shared segment"};
  }
  const bool hugetlb = arena_.huge_pages() == HugePages::kHugetlb;
  struct statfs system{};  // without a limit it has 0 blocks
  if (::fstatfs(file_.get(), &system) == 0 && system.f_blocks > 0 &&
      size_bytes / static_cast<std::size_t>(system.f_bsize) > system.f_blocks) {
    return no_memory(path_, size_bytes, hugetlb, ENOSPC);
  }
  const std::size_t end = round_up(offset + size_bytes, block_size_bytes_);
  for (std::size_t at = round_down(offset, block_size_bytes_); at < end;) {
    const std::size_t piece = std::min(kCommitPieceBytes, end - at);
    int interrupted = 0;
    while (::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                       static_cast<off_t>(piece)) != 0) {
      if (errno == EINTR && interrupted++ < kInterruptedMax) continue;
      return no_memory(path_, size_bytes, hugetlb, errno);
    }
    at += piece;
  }
  return Done{};
}

Outcome SharedSegment::discard(std::size_t offset, std::size_t size_bytes) {
  if (!contains(offset, size_bytes)) {
    return Error{Errc::kInvalidArgument, "discard: the range is outside of the shared segment"};
  }
  const std::size_t begin = round_up(offset, block_size_bytes_);
  const std::size_t end = round_down(offset + size_bytes, block_size_bytes_);
  if (begin >= end) return Done{};
  int interrupted = 0;
  while (::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(begin), static_cast<off_t>(end - begin)) != 0) {
    if (errno == EINTR && interrupted++ < kInterruptedMax) continue;
    return failed("give back memory of", path_, errno);
  }
  return Done{};
}

void SharedSegment::forget() const noexcept {
  ::madvise(arena_.bytes().data(), arena_.size_bytes(), MADV_DONTNEED);
}

Outcome SharedSegment::populate(std::size_t offset, std::size_t size_bytes) const {
  if (!contains(offset, size_bytes)) {
    return Error{Errc::kInvalidArgument, "populate: the range is outside of the shared segment"};
  }
  const std::size_t end = round_up(offset + size_bytes, block_size_bytes_);
  std::size_t piece = 0;
  for (std::size_t at = round_down(offset, block_size_bytes_); at < end; at += piece) {
    piece = std::min(std::max(kPopulatePieceBytes, block_size_bytes_), end - at);
    int interrupted = 0;
    // For reading is for writing too where files need no writing back, and three times as fast:
    // the kernel maps what is around a page with it.
    while (::madvise(bytes().data() + at, piece, MADV_POPULATE_READ) != 0) {
      if (errno == EINVAL) return Done{};
      if ((errno == EINTR || errno == EAGAIN) && interrupted++ < kInterruptedMax) continue;
      return system_error("there is no memory behind a part of " + path_, errno);
    }
  }
  return Done{};
}

Outcome SharedSegment::locks_held(std::span<const std::uint64_t> bytes,
                                  std::span<std::uint8_t> held) const {
  if (!file_) return Error{Errc::kClosed, "the shared segment's descriptor is closed"};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] > kLockMax) return Error{Errc::kInvalidArgument, kLockTooLarge};
    struct flock lock = one_byte(bytes[i]);
    if (::fcntl(file_.get(), F_OFD_GETLK, &lock) != 0) {
      return failed("ask for locks of", path_, errno);
    }
    held[i] = lock.l_type == F_UNLCK ? 0 : 1;
  }
  return Done{};
}

Result<bool> SharedSegment::lock_is_held(std::uint64_t byte) const {
  std::uint8_t held = 1;
  if (auto asked = locks_held({&byte, 1}, {&held, 1}); !asked) return asked.error();
  return held != 0;
}

bool SharedSegment::unlink() noexcept {
  if (role_ != Role::kOwner || process_ != ::getpid() || !file_) return false;
  struct stat ours{}, named{};
  if (::fstat(file_.get(), &ours) != 0 || ::lstat(path_.c_str(), &named) != 0) return false;
  if (ours.st_dev != named.st_dev || ours.st_ino != named.st_ino) return false;
  return ::unlink(path_.c_str()) == 0;
}

}  // namespace kvferry::mem
