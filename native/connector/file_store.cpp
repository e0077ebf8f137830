#include "connector/file_store.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>

#include "base/hex.hpp"
#include "connector/file_format.hpp"

namespace kvferry::connector {
namespace {

constexpr std::string_view kFormat = "kvferry file store 1\n";
constexpr std::size_t kTextBytesMax = 64 * kKiB;
constexpr std::string_view kOwnerSuffix = ".owner";

// Of a name that begins with the 16 hex digits of an owner; 0: of none.
FileUsage::Owner owner_number(std::string_view name) {
  FileUsage::Owner number = 0;
  std::from_chars(name.data(), name.data() + std::min<std::size_t>(name.size(), 16), number, 16);
  return number;
}

std::string directory_name(unsigned directory) {
  const auto byte = static_cast<std::byte>(directory);
  return hex({&byte, 1});
}

// The names in a directory, without dots; nothing where it cannot be read.
std::vector<std::string> names_in(int parent, const char* path) {
  std::vector<std::string> names;
  const int fd = ::openat(parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd), ::closedir);
  if (!directory) {
    ::close(fd);
    return names;
  }
  while (const dirent* entry = ::readdir(directory.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  return names;
}

bool is_value_name(std::string_view name) {
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string read_text(int parent, const std::string& path) {
  const UniqueFd fd(::openat(parent, path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return {};
  std::string text(kTextBytesMax, '\0');
  const ssize_t count = ::read(fd.get(), text.data(), text.size());
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

// 0: a file. Else what it is instead.
int no_file(const struct stat& found) noexcept {
  if (S_ISREG(found.st_mode)) return 0;
  return S_ISDIR(found.st_mode) ? EISDIR : S_ISLNK(found.st_mode) ? ELOOP : ENXIO;
}

bool same(const struct stat& one, const struct stat& other) noexcept {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

int make_directory(int parent, const char* name) {
  return ::mkdirat(parent, name, 0700) == 0 || errno == EEXIST ? 0 : errno;
}

}  // namespace

bool is_of_one_place(int error) noexcept {
  constexpr std::array<int, 9> kErrors = {EISDIR, ENOTDIR, ELOOP,  ENXIO, EACCES,
                                          EPERM,  EXDEV,   EEXIST, ENODEV};
  return std::ranges::find(kErrors, error) != kErrors.end();
}

std::string_view obstacle(int error) noexcept {
  switch (error) {
    case EISDIR:
      return "it is a directory";
    case ENOTDIR:
      return "its directory is none";
    case ELOOP:
      return "it is a link";
    case ENXIO:
      return "it is no file";
    default:
      return "it may not be read or replaced";
  }
}

std::int64_t wall_clock_ms() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

Result<std::shared_ptr<FileStore>> FileStore::open(const std::string& path,
                                                   std::uint64_t capacity_bytes, FileSteps* steps,
                                                   const FilePlace* before) {
  std::error_code problem;
  if (before == nullptr || before->usable()) std::filesystem::create_directories(path, problem);
  UniqueFd root(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (before != nullptr && !before->usable()) {  // asked again: it may have gone meanwhile
    return Error{Errc::kSystem, path + " is not there: its file system is not mounted"};
  }
  if (!root) return system_error("cannot open the directory " + path, errno);
  const std::string format = read_text(root.get(), "format");
  if (format.empty()) {
    // Into a directory of ours that somebody empties a write under way may still put something.
    const bool ours = before != nullptr && before->was(root.get());
    const auto names = ours ? std::vector<std::string>() : names_in(root.get(), ".");
    for (const std::string& name : names) {
      // The first belongs to whoever makes the store at this moment, the second to a file system.
      if (name == "format" || name == "lost+found") continue;
      return Error{Errc::kInvalidArgument,
                   path + " is not empty and no file store; name a directory of its own"};
    }
    const UniqueFd file(
        ::openat(root.get(), "format", O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600));
    if (!file || !write_all(file.get(), kFormat)) {
      return system_error("cannot write to the directory " + path, errno);
    }
  } else if (format != kFormat) {
    return Error{Errc::kInvalidArgument,
                 path + " is a file store of a format that is unknown here"};
  }
  for (const char* name : {"tmp", "identities"}) {
    if (const int error = make_directory(root.get(), name); error != 0) {
      return system_error("cannot write to the directory " + path, error);
    }
  }
  UniqueFd tmp(::openat(root.get(), "tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!tmp) return system_error("cannot open the directory " + path + "/tmp", errno);
  std::shared_ptr<FileStore> store(
      new FileStore(path, std::move(root), std::move(tmp), capacity_bytes, steps));
  if (const int error = store->own(); error != 0) {
    return system_error("cannot write to the directory " + path, error);
  }
  store->sweep();
  return store;
}

FileStore::FileStore(const std::string& path, UniqueFd root, UniqueFd tmp,
                     std::uint64_t capacity_bytes, FileSteps* steps)
    : root_(std::move(root)),
      tmp_(std::move(tmp)),
      place_(path, root_.get()),
      capacity_bytes_(capacity_bytes),
      steps_(steps) {}

bool FileStore::in_place() const {
  struct stat mine{};
  struct stat found{};
  return here() && ::fstat(tmp_.get(), &mine) == 0 &&
         ::fstatat(root_.get(), "tmp", &found, AT_SYMLINK_NOFOLLOW) == 0 && same(mine, found) &&
         ::fstat(lock_.get(), &mine) == 0 && mine.st_nlink > 0 && usage_->in_place();
}

FileStore::~FileStore() {
  if (!lock_) return;
  usage_->forget(owner_number(owner_));
  // Only while it is still locked by us: its temporary files are gone.
  ::unlinkat(tmp_.get(), (owner_ + std::string(kOwnerSuffix)).c_str(), 0);
}

// Makes an owner file and locks it, before anything is written under its name.
int FileStore::own() {
  for (int attempt = 0; attempt < 10; ++attempt) {
    std::array<std::byte, 8> random{};
    if (::getrandom(random.data(), random.size(), 0) != ssize_t{random.size()}) return errno;
    owner_ = hex(random);
    const std::string name = owner_ + std::string(kOwnerSuffix);
    UniqueFd lock(::openat(tmp_.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!lock) {
      const int error = errno;
      // A disk that our values fill has no room for this file either: one of them makes some.
      if ((error == ENOSPC || error == EDQUOT) && give_up_one()) continue;
      return error;
    }
    struct stat facts{};
    // Somebody's sweep may have come between the two and taken it for a dead one's.
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0 && ::fstat(lock.get(), &facts) == 0 &&
        facts.st_nlink > 0) {
      lock_ = std::move(lock);
      usage_ = std::make_unique<FileUsage>(root_.get(), "usage", owner_number(owner_));
      return 0;
    }
  }
  return EAGAIN;
}

// Whether there was a value to delete. It is counted by the scan that follows the opening.
bool FileStore::give_up_one() {
  for (unsigned directory = 0; directory < 256; ++directory) {
    for (const std::string& name : list(directory)) {
      if (::unlinkat(root_.get(), name.c_str(), 0) == 0) return true;
    }
  }
  return false;
}

void FileStore::sweep() {
  // Temporary files first: whose owner is missing afterwards has none, because an owner comes
  // before its files.
  const std::vector<std::string> names = names_in(root_.get(), "tmp");
  bool alone = true;
  for (const std::string& name : names) {
    if (!name.ends_with(kOwnerSuffix) || name.starts_with(owner_)) continue;
    const UniqueFd lock(::openat(tmp_.get(), name.c_str(), O_RDWR | O_CLOEXEC));
    if (!lock) continue;
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
      usage_->forget(owner_number(name));  // first: whoever is stopped here leaves it to the next
      ::unlinkat(tmp_.get(), name.c_str(), 0);
    } else {
      alone = false;
    }
  }
  for (const std::string& name : names) {
    if (name.ends_with(kOwnerSuffix)) continue;
    const std::string owner = name.substr(0, name.find('-')) + std::string(kOwnerSuffix);
    if (::faccessat(tmp_.get(), owner.c_str(), F_OK, 0) != 0 && errno == ENOENT) {
      ::unlinkat(tmp_.get(), name.c_str(), 0);
    }
  }
  if (alone) usage_->forget_others();
}

std::size_t FileStore::direct_alignment() {
  Temporary probe;
  if (create(0, O_DIRECT, probe) != 0) return 0;
  // Tried, because not every kernel and file system tells.
  alignas(kFileBlockBytes) static const std::array<std::byte, 2 * kFileBlockBytes> zeros{};
  std::size_t found = 0;
  for (const std::size_t alignment : {std::size_t{512}, kFileBlockBytes}) {
    const std::byte* const from = zeros.data() + alignment % kFileBlockBytes;
    if (::pwrite(probe.fd.get(), from, kFileBlockBytes, 0) == ssize_t{kFileBlockBytes}) {
      found = alignment;
      break;
    }
  }
  discard(probe);
  return found;
}

bool FileStore::reserve(std::int64_t bytes) { return usage_->reserve(bytes, capacity_bytes_); }

void FileStore::give_back(std::int64_t bytes) { usage_->give_back(bytes); }

int FileStore::open_value(const std::string& name, int flags, UniqueFd& fd) const {
  // A pipe would be waited for, until somebody writes to it.
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  struct stat found{};
  fd = UniqueFd(::openat(root_.get(), name.c_str(), kFlags | flags));
  if (!fd) {
    const int error = errno;  // of a directory it may be one that says nothing
    return facts(name, found) == 0 && no_file(found) != 0 ? no_file(found) : error;
  }
  if (::fstat(fd.get(), &found) != 0) return errno;
  if (const int error = no_file(found); error != 0) {
    fd.reset();
    return error;
  }
  return 0;
}

int FileStore::create(std::int64_t size_bytes, int flags, Temporary& temporary) {
  temporary.name = owner_ + "-" + std::to_string(created_.fetch_add(1, std::memory_order_relaxed));
  temporary.size_bytes = size_bytes;
  if (const int error = step(FileSteps::Step::kCreate, temporary.name); error != 0) return error;
  temporary.fd = UniqueFd(::openat(tmp_.get(), temporary.name.c_str(),
                                   O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0600));
  return temporary.fd ? 0 : errno;
}

int FileStore::publish(Temporary& temporary, const std::string& name, bool sync_directory) {
  if (const int error = step(FileSteps::Step::kRename, temporary.name); error != 0) return error;
  struct stat before{};
  const bool replaces = facts(name, before) == 0;
  if (replaces && no_file(before) != 0) return no_file(before);
  const std::int64_t replaced = replaces ? before.st_size : -1;
  const std::string parent = name.substr(0, 2);
  if (::renameat(tmp_.get(), temporary.name.c_str(), root_.get(), name.c_str()) != 0) {
    if (errno != ENOENT) return errno;
    // The first value of its directory.
    if (const int error = make_directory(root_.get(), parent.c_str()); error != 0) {
      return error;
    }
    if (sync_directory && ::fsync(root_.get()) != 0) return errno;
    if (::renameat(tmp_.get(), temporary.name.c_str(), root_.get(), name.c_str()) != 0) {
      return errno;
    }
  }
  usage_->stored(temporary.size_bytes, replaced);
  temporary.name.clear();
  temporary.fd.reset();
  if (!sync_directory) return 0;
  if (const int error = step(FileSteps::Step::kSyncDirectory, name); error != 0) return error;
  const UniqueFd directory(
      ::openat(root_.get(), parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return directory && ::fsync(directory.get()) == 0 ? 0 : errno;
}

void FileStore::discard(Temporary& temporary) {
  if (temporary.name.empty()) return;
  ::unlinkat(tmp_.get(), temporary.name.c_str(), 0);
  temporary.fd.reset();
  temporary.name.clear();
  give_back(temporary.size_bytes);
}

int FileStore::remove(const std::string& name) {
  struct stat before{};
  if (const int error = facts(name, before); error != 0) return error;
  if (const int error = no_file(before); error != 0) return error;
  if (const int error = step(FileSteps::Step::kRemove, name); error != 0) return error;
  if (::unlinkat(root_.get(), name.c_str(), 0) != 0) return errno;
  usage_->removed(before.st_size);
  return 0;
}

int FileStore::facts(const std::string& name, struct stat& found) const {
  return ::fstatat(root_.get(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
}

int FileStore::readable(const std::string& name) const {
  struct stat found{};
  if (const int error = facts(name, found); error != 0) return error;
  if (const int error = no_file(found); error != 0) return error;
  return ::faccessat(root_.get(), name.c_str(), R_OK, AT_EACCESS) == 0 ? 0 : errno;
}

void FileStore::touch(const std::string& name) const {
  const std::array<timespec, 2> times = {timespec{0, UTIME_OMIT}, timespec{0, UTIME_NOW}};
  ::utimensat(root_.get(), name.c_str(), times.data(), AT_SYMLINK_NOFOLLOW);
}

void FileStore::scan(const Visit& visit, const std::atomic<bool>& stopped) {
  const FileUsage::Counters before = usage_->note();
  std::int64_t bytes = 0;
  std::int64_t keys = 0;
  for (unsigned directory = 0; directory < 256; ++directory) {
    if (stopped.load(std::memory_order_relaxed)) return;
    for (const std::string& name : list(directory)) {
      struct stat found{};
      if (facts(name, found) != 0 || no_file(found) != 0) continue;
      bytes += found.st_size;
      ++keys;
      if (visit) visit(name, found);
    }
  }
  usage_->correct(before, bytes, keys, wall_clock_ms());
}

std::vector<std::string> FileStore::list(unsigned directory) const {
  const std::string parent = directory_name(directory);
  std::vector<std::string> names;
  for (const std::string& name : names_in(root_.get(), parent.c_str())) {
    if (is_value_name(name) && name.starts_with(parent)) names.push_back(parent + "/" + name);
  }
  return names;
}

int FileStore::describe(const std::string& identity_hex, const std::string& text) {
  const std::string name = "identities/" + identity_hex;
  if (read_text(root_.get(), name) == text) return 0;
  Temporary temporary;
  if (const int error = create(0, 0, temporary); error != 0) return error;
  if (!write_all(temporary.fd.get(), text) ||
      ::renameat(tmp_.get(), temporary.name.c_str(), root_.get(), name.c_str()) != 0) {
    const int error = errno;
    discard(temporary);
    return error;
  }
  return 0;
}

std::vector<std::pair<std::string, std::string>> FileStore::descriptions() const {
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& name : names_in(root_.get(), "identities")) {
    found.emplace_back(name, read_text(root_.get(), "identities/" + name));
  }
  return found;
}

}  // namespace kvferry::connector
