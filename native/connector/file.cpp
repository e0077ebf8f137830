#include "connector/file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "base/hex.hpp"
#include "codec/checksum.hpp"

namespace kvferry::connector {
namespace {

// Under way in a thread with io_uring: enough bytes for any disk, and few enough that a value may
// still be in the cache of the processor when its checksum is taken.
constexpr std::size_t kBytesUnderWay = 32 * kMiB;
constexpr std::size_t kDepthMin = 2;
constexpr std::size_t kDepthMax = 32;
constexpr int kFailuresUntilDown = 3;     // in a row
constexpr Nanos kDownTime = 5 * kSecond;  // then it is tried again
constexpr Nanos kCountShare = 20;         // a count may take 1/20 of the time
constexpr Nanos kLookEvery = kSecond;     // whether the directory is there
// A directory that was removed is not made anew at once, and one that was emptied is not filled:
// somebody may be at it.
constexpr Nanos kMakeAfter = 3 * kSecond;
constexpr std::size_t kNamesMax = 4096;
constexpr std::size_t kNamesLogged = 100;

constexpr std::array<std::size_t, kLanes> kRingThreads = {1, 2, 2};
constexpr std::array<std::size_t, kLanes> kPlainThreads = {1, 4, 4};

constexpr std::int64_t kYoungSeconds = 10;  // a read makes a value young again after so long

bool make_room(FileStore& store, const std::string& name, std::int64_t size_bytes) {
  if (store.reserve(size_bytes)) return true;
  // A value replaces its like without needing a place for both: the old one goes first.
  return store.remove(name) == 0 && store.reserve(size_bytes);
}

}  // namespace

// One value that is being read or written. A thread of the driver owns it, or the kernel while its
// operation is in flight.
struct FileConnector::Slot : IoOperation {
  Task task;
  std::shared_ptr<FileStore> store;  // as it was when this began
  std::string key;                   // with the prefix
  std::string name;                  // of the file
  UniqueFd fd;                       // that is read
  FileStore::Temporary temporary;    // that is written
  bool syncing = false;
  std::size_t expected = 0;  // bytes that the operation should move
  alignas(kFileBlockBytes) std::array<std::byte, kFileBlockBytes> head;
  alignas(kFileBlockBytes) std::array<std::byte, kFileBlockBytes> tail;

  // The pieces of the whole file: head, the payload's whole blocks in place, the rest in `tail`.
  void lay_out(Kind what, int file, MutableBytes payload) {
    kind = what;
    fd_set(file);
    const std::size_t whole = payload.size() / kFileBlockBytes * kFileBlockBytes;
    add(head.data(), head.size());
    if (whole > 0) add(payload.data(), whole);
    if (whole < payload.size()) add(tail.data(), tail.size());
    expected = file_size(payload.size(), false);
  }
  void fd_set(int file) {
    IoOperation::fd = file;
    piece_count = 0;
    offset = 0;
    moved = 0;
    error = 0;
  }
};

Result<std::shared_ptr<Connector>> FileConnector::open(Space space, const FileOptions& options) {
  if (space.value_size_bytes == 0) {
    return Error{Errc::kInvalidArgument, "values of no bytes cannot be stored"};
  }
  auto store = FileStore::open(options.path, options.capacity_bytes, options.steps);
  if (!store) return store.error();
  const std::size_t alignment = options.direct == Direct::kOff ? 0 : (*store)->direct_alignment();
  if (alignment == 0 && options.direct == Direct::kOn) {
    return Error{Errc::kInvalidArgument, options.path + " does not take O_DIRECT"};
  }
  auto event = EventFd::open();
  if (!event) return event.error();
  if (!space.description.empty()) {
    // Best effort: without it nobody is told what this identity is.
    [[maybe_unused]] const int error = (*store)->describe(hex(space.identity), space.description);
  }
  auto connector = std::make_shared<FileConnector>(std::move(space), std::move(*event), options,
                                                   std::move(*store), alignment);
  connector->count();
  const Threads threads = connector->ring_ ? kRingThreads : kPlainThreads;
  Outcome started = connector->launch(threads);
  if (started) {
    started = connector->launch_also("kvferry-scan", [](PooledConnector& self, JobLane) {
      static_cast<FileConnector&>(self).keep_watch();
    });
  }
  if (!started) return started.error();
  return std::shared_ptr<Connector>(std::move(connector));
}

FileConnector::FileConnector(Space space, EventFd event, const FileOptions& options,
                             std::shared_ptr<FileStore> store, std::size_t direct_alignment)
    : PooledConnector(std::move(space), std::move(event), options.queued_keys_max),
      options_(options),
      store_(std::move(store)),
      alignment_(direct_alignment),
      file_bytes_(file_size(Connector::space().value_size_bytes, false)),
      // Through the kernel's cache a ring gains nothing.
      ring_(direct_alignment != 0 && options.ring && BlockIo::open_ring(1).has_value()) {}

FileConnector::~FileConnector() = default;

std::string FileConnector::mode() const {
  return std::string(alignment_.load(std::memory_order_relaxed) != 0 ? "direct" : "buffered") +
         (ring_ ? ", io_uring" : ", threads");
}

bool FileConnector::available() const {
  if (is_away()) return false;
  return failures_.load(std::memory_order_relaxed) < kFailuresUntilDown ||
         monotonic_ns() - failed_at_.load(std::memory_order_relaxed) > kDownTime;
}

Result<Usage> FileConnector::usage() const {
  if (is_away()) return Error{Errc::kConnect, away()};
  Usage usage{.used_bytes = static_cast<std::uint64_t>(store_->usage().bytes()),
              .capacity_bytes = {},
              .keys = static_cast<std::uint64_t>(store_->usage().keys())};
  if (options_.capacity_bytes != 0) usage.capacity_bytes = options_.capacity_bytes;
  return usage;
}

Result<ScanPage> FileConnector::scan(std::uint64_t cursor) {
  ScanPage page;
  const std::int64_t now_ms = wall_clock_ms();
  for (const std::string& name : store_->list(static_cast<unsigned>(cursor))) {
    FileHead head;
    struct stat found{};
    if (store_->facts(name, found) != 0 || !read_head(name, head) || expired(head)) continue;
    if (head.identity != space().identity || !head.key.starts_with(space().prefix)) continue;
    if (file_name(head.key) != name) continue;  // it was moved here
    const std::int64_t used_ms =
        static_cast<std::int64_t>(found.st_mtim.tv_sec) * 1000 + found.st_mtim.tv_nsec / 1'000'000;
    page.entries.push_back({head.key.substr(space().prefix.size()),
                            std::max<std::int64_t>(0, now_ms - used_ms) * kMilli});
  }
  page.next = cursor < 255 ? cursor + 1 : 0;
  return page;
}

Result<std::vector<std::pair<Identity, std::string>>> FileConnector::descriptions() {
  std::vector<std::pair<Identity, std::string>> found;
  for (const auto& [name, text] : store_->descriptions()) {
    Identity identity{};
    if (name.size() != 2 * identity.size() ||
        name.find_first_not_of("0123456789abcdef") != std::string::npos) {
      continue;
    }
    for (std::size_t index = 0; index < identity.size(); ++index) {
      identity[index] = static_cast<std::byte>(std::stoul(name.substr(2 * index, 2), nullptr, 16));
    }
    found.emplace_back(identity, text);
  }
  return found;
}

std::unique_ptr<BlockIo> FileConnector::make_io() {
  if (ring_) {
    const std::size_t depth = std::clamp(kBytesUnderWay / file_bytes_, kDepthMin, kDepthMax);
    if (auto io = BlockIo::open_ring(depth)) return std::move(*io);
    log().push(LogLevel::kInfo, "no more io_uring; this thread reads and writes without it");
  }
  return BlockIo::open_plain();
}

void FileConnector::work(JobLane lane) {
  if (lane == JobLane::kSmall) return PooledConnector::work(lane);
  const std::unique_ptr<BlockIo> io = make_io();
  std::vector<std::unique_ptr<Slot>> idle;
  for (std::size_t index = 0; index < io->depth(); ++index) {
    idle.push_back(std::make_unique<Slot>());
  }
  const std::size_t depth = idle.size();
  // A slot whose key is complete is idle; else its operation goes on.
  const auto proceed = [&](std::unique_ptr<Slot> slot, bool completed) {
    if (completed) {
      idle.push_back(std::move(slot));
    } else {
      io->start(*slot.release());  // wait() brings it back
    }
  };
  for (;;) {
    while (!idle.empty()) {
      const bool nothing_else = idle.size() == depth;
      Task task = next(lane, nothing_else);
      if (!task) {
        if (nothing_else) return;
        break;
      }
      std::unique_ptr<Slot> slot = std::move(idle.back());
      idle.pop_back();
      const bool completed = begin(*slot, std::move(task));
      proceed(std::move(slot), completed);
    }
    if (idle.size() == depth) continue;
    std::unique_ptr<Slot> slot(static_cast<Slot*>(io->wait()));
    const bool completed = advance(*slot);
    proceed(std::move(slot), completed);
  }
}

KeyOutcome FileConnector::perform(Job& job, std::size_t index) {
  if (is_away()) return {.status = Status::kUnavailable, .size = 0, .why = away()};
  const std::shared_ptr<FileStore> store = store_.get();
  const std::string name = file_name(full_key(space(), job.key(index)));
  const Verb verb = job.options().verb;
  if (verb != Verb::kDelete) return present(*store, name, verb == Verb::kTouch);
  const int error = store->remove(name);
  const KeyOutcome miss{.status = Status::kMiss, .size = 0, .why = {}};
  if (error == ENOENT) return miss;
  if (is_of_one_place(error)) {
    in_the_way(name, error);
    return miss;
  }
  return error == 0 ? KeyOutcome{} : failure("cannot delete a value", error);
}

KeyOutcome FileConnector::present(FileStore& store, const std::string& name, bool touch) {
  const KeyOutcome miss{.status = Status::kMiss, .size = 0, .why = {}};
  struct stat found{};
  const int error = store.facts(name, found);
  if (error == ENOENT || is_in_the_way(store, name)) return miss;
  if (is_of_one_place(error)) {
    in_the_way(name, error);
    return miss;
  }
  if (error != 0) return failure("cannot look for a value", error);
  if (!S_ISREG(found.st_mode)) return miss;
  const auto size = static_cast<std::size_t>(found.st_size);
  if (size == file_bytes_ + kFileBlockBytes) {  // it expires
    FileHead head;
    if (!read_head(name, head) || expired(head)) return miss;
  } else if (size != file_bytes_) {
    return miss;  // whoever reads it finds out why
  }
  if (touch) store.touch(name);
  return {};
}

KeyOutcome FileConnector::failure(const char* action, int error) {
  // A disk that is full is no disk that fails.
  const bool full = error == ENOSPC || error == EDQUOT;
  if (!full) {
    failures_.fetch_add(1, std::memory_order_relaxed);
    failed_at_.store(monotonic_ns(), std::memory_order_relaxed);
  }
  if (error == ENOENT || error == ESTALE) {  // of what is made here: perhaps all of it is gone
    {
      const std::lock_guard lock(count_mutex_);
      look_now_ = true;
    }
    count_soon_.notify_all();
  }
  return {.status = Status::kServerError,
          .size = 0,
          .why = (full ? "OOM " : "") + system_error(action, error).context};
}

KeyOutcome FileConnector::in_the_way(const std::string& name, int error) {
  const std::string why =
      options_.path + "/" + name + " is in the way of a value: " + std::string(obstacle(error));
  std::size_t count = 0;
  {
    const std::lock_guard lock(place_mutex_);
    if (obstacles_.size() < kNamesMax && obstacles_.insert(name).second) count = obstacles_.size();
    obstacles_count_.store(obstacles_.size(), std::memory_order_relaxed);
  }
  if (count > 0 && count <= kNamesLogged) {
    log().push(LogLevel::kWarning, why + "; that value is not kept. Remove it" +
                                       (count == kNamesLogged ? "; more are not named" : ""));
  }
  return {.status = Status::kServerError, .size = 0, .why = why};
}

bool FileConnector::is_in_the_way(FileStore& store, const std::string& name) {
  if (obstacles_count_.load(std::memory_order_relaxed) == 0) return false;
  {
    const std::lock_guard lock(place_mutex_);
    if (!obstacles_.contains(name)) return false;
  }
  const int error = store.readable(name);
  if (error != 0 && error != ENOENT) return true;
  const std::lock_guard lock(place_mutex_);
  obstacles_.erase(name);
  obstacles_count_.store(obstacles_.size(), std::memory_order_relaxed);
  return false;
}

std::string FileConnector::away() const {
  const std::lock_guard lock(place_mutex_);
  return why_away_;
}

bool FileConnector::read_head(const std::string& name, FileHead& head) const {
  UniqueFd fd;
  if (store_->open_value(name, 0, fd) != 0) return false;
  std::array<std::byte, kFileBlockBytes> block;
  if (::pread(fd.get(), block.data(), block.size(), 0) != ssize_t{block.size()}) return false;
  return decode_file_head(block, head) == codec::FrameFault::kNone;
}

bool FileConnector::expired(const FileHead& head) const noexcept {
  return head.expires_at_ms != 0 && head.expires_at_ms <= wall_clock_ms();
}

void FileConnector::count() {
  store_->scan(
      [this](const std::string& name, const struct stat& found) {
        FileHead head;
        if (static_cast<std::size_t>(found.st_size) != file_bytes_ + kFileBlockBytes) return;
        if (read_head(name, head) && expired(head)) store_->remove(name);
      },
      stopped_);
}

// The body of a thread: looks whether the directory is there, and counts anew when values were
// stored and the last count, which may be another process's, is old.
void FileConnector::keep_watch() {
  Nanos pause = options_.rescan_after;
  Nanos counted_at = monotonic_ns();
  for (;;) {
    {
      std::unique_lock lock(count_mutex_);
      const Nanos left = std::max<Nanos>(0, counted_at + pause - monotonic_ns());
      const auto wanted = [this] { return stopped_.load(std::memory_order_relaxed) || look_now_; };
      count_soon_.wait_for(lock, std::chrono::nanoseconds(std::min(left, kLookEvery)), wanted);
      if (stopped_.load(std::memory_order_relaxed)) return;
      look_now_ = false;
    }
    look_for_directory();
    const Nanos started = monotonic_ns();
    if (started < counted_at + pause) continue;
    counted_at = started;
    {
      const std::lock_guard lock(count_mutex_);
      if (!std::exchange(stored_since_, false)) continue;
    }
    if ((wall_clock_ms() - store_->scanned_at_ms()) * kMilli < options_.rescan_after) continue;
    count();
    pause = std::max(options_.rescan_after, kCountShare * (monotonic_ns() - started));
  }
}

void FileConnector::look_for_directory() {
  const std::shared_ptr<FileStore> before = store_.get();
  if (!is_away()) {
    if (before->in_place()) return;
    away_since_ = monotonic_ns();
    const char* what = before->removed() ? "was removed"
                       : before->here()  ? "was emptied"
                                         : "was moved, or something covers it";
    const std::string why = "the directory " + options_.path + " " + what;
    {
      const std::lock_guard lock(place_mutex_);
      why_away_ = why;
    }
    away_.store(true, std::memory_order_relaxed);
    log().push(LogLevel::kWarning, why + "; it is looked for every second");
  } else if (before->in_place()) {  // moved back
    away_.store(false, std::memory_order_relaxed);
    log().push(LogLevel::kInfo, "the directory " + options_.path + " is back");
    return;
  }
  const bool vacant = before->place().vacant();
  // Who has moved it may move it back.
  if (vacant && !before->removed() && !before->place().elsewhere()) return;
  // Who has removed it may make another one, and who has removed what is in it may not be done yet.
  const bool emptied = !vacant && before->here();
  if ((vacant || emptied) && monotonic_ns() - away_since_ < kMakeAfter) return;
  auto opened =
      FileStore::open(options_.path, options_.capacity_bytes, options_.steps, &before->place());
  std::size_t alignment = 0;
  if (opened && options_.direct != Direct::kOff) alignment = (*opened)->direct_alignment();
  std::string why = opened ? "" : opened.error().context;
  if (opened && alignment == 0 && options_.direct == Direct::kOn) {
    why = options_.path + " does not take O_DIRECT";
  }
  if (!why.empty()) {
    const std::lock_guard lock(place_mutex_);
    if (why_away_ != why) log().push(LogLevel::kWarning, why);
    why_away_ = why;
    return;
  }
  if (!space().description.empty()) {
    [[maybe_unused]] const int error =
        (*opened)->describe(hex(space().identity), space().description);
  }
  alignment_.store(alignment, std::memory_order_relaxed);
  store_.exchange(std::move(*opened));
  count();
  failures_.store(0, std::memory_order_relaxed);
  away_.store(false, std::memory_order_relaxed);
  log().push(LogLevel::kInfo, "the directory " + options_.path + " was opened anew");
}

void FileConnector::stop(Nanos until) {
  {
    const std::lock_guard lock(count_mutex_);
    stopped_.store(true, std::memory_order_relaxed);
  }
  count_soon_.notify_all();
  PooledConnector::stop(until);
}

// --- One value, step by step ---

bool FileConnector::goes_straight(MutableBytes memory) const noexcept {
  const std::size_t alignment = alignment_.load(std::memory_order_relaxed);
  return alignment != 0 && reinterpret_cast<std::uintptr_t>(memory.data()) % alignment == 0;
}

bool FileConnector::begin(Slot& slot, Task task) {
  slot.task = std::move(task);
  slot.key = full_key(space(), slot.task.job->key(slot.task.index));
  slot.name = file_name(slot.key);
  slot.syncing = false;
  if (is_away()) return done(slot, {.status = Status::kUnavailable, .size = 0, .why = away()});
  slot.store = store_.get();
  try {
    return slot.task.job->options().verb == Verb::kGet ? begin_get(slot) : begin_set(slot);
  } catch (const std::exception& problem) {
    return done(slot, {.status = Status::kServerError, .size = 0, .why = problem.what()});
  }
}

bool FileConnector::begin_get(Slot& slot) {
  const MutableBytes target = slot.task.job->buffer(slot.task.index);
  // Memory that a disk cannot write to is filled out of the kernel's cache.
  const int flags = goes_straight(target) ? O_DIRECT : 0;
  int error = slot.store->open_value(slot.name, flags, slot.fd);
  struct stat found{};
  if (error == 0 && ::fstat(slot.fd.get(), &found) != 0) error = errno;
  const KeyOutcome miss{.status = Status::kMiss, .size = 0, .why = {}};
  if (error == ENOENT) return done(slot, miss);
  if (is_of_one_place(error)) {
    in_the_way(slot.name, error);
    return done(slot, miss);
  }
  if (error != 0) return failed(slot, "cannot open a value", error);
  const auto size = static_cast<std::size_t>(found.st_size);
  if (size != file_bytes_ && size != file_bytes_ + kFileBlockBytes) {
    // Of another length, or cut off.
    FileHead head;
    std::uint64_t length = 0;
    codec::FrameFault fault = codec::FrameFault::kShape;
    if (read_head(slot.name, head) && (size == file_size(head.payload_size_bytes, false) ||
                                       size == file_size(head.payload_size_bytes, true))) {
      length = head.payload_size_bytes;
      fault = check_file_head(head, slot.key, space());
    }
    return refuse(slot, fault, length);
  }
  const std::int64_t age_s = wall_clock_ms() / 1000 - found.st_mtim.tv_sec;
  if (age_s > kYoungSeconds) slot.store->touch(slot.name);
  slot.lay_out(IoOperation::Kind::kRead, slot.fd.get(), target);
  return false;
}

bool FileConnector::received(Slot& slot) {
  if (slot.error != 0) return failed(slot, "cannot read a value", slot.error);
  if (slot.moved < slot.expected) return refuse(slot, codec::FrameFault::kShape, 0);
  const MutableBytes target = slot.task.job->buffer(slot.task.index);
  FileHead head;
  codec::FrameFault fault = decode_file_head(slot.head, head);
  if (fault == codec::FrameFault::kNone) fault = check_file_head(head, slot.key, space());
  if (fault != codec::FrameFault::kNone) return refuse(slot, fault, head.payload_size_bytes);
  if (expired(head)) {
    slot.store->remove(slot.name);
    return done(slot, {.status = Status::kMiss, .size = 0, .why = {}});
  }
  const std::size_t rest = target.size() % kFileBlockBytes;
  std::memcpy(target.data() + (target.size() - rest), slot.tail.data(), rest);
  if (codec::xxh3_64(target) != head.payload_checksum) {
    return refuse(slot, codec::FrameFault::kPayloadChecksum, target.size());
  }
  return done(slot, {.status = Status::kOk, .size = target.size(), .why = {}});
}

bool FileConnector::begin_set(Slot& slot) {
  const Job& job = *slot.task.job;
  const MutableBytes source = job.buffer(slot.task.index);
  const std::int64_t ttl_ms = job.options().ttl_ms;
  const auto size = static_cast<std::int64_t>(file_size(source.size(), ttl_ms > 0));
  if (is_in_the_way(*slot.store, slot.name)) {  // before anything is written in vain
    return done(slot, in_the_way(slot.name, slot.store->readable(slot.name)));
  }
  if (!make_room(*slot.store, slot.name, size)) {
    return done(
        slot, {.status = Status::kServerError,
               .size = 0,
               .why = "OOM the file store is full: " + std::to_string(slot.store->usage().bytes()) +
                      " of " + std::to_string(options_.capacity_bytes) + " bytes are used"});
  }
  const bool straight = goes_straight(source);
  if (const int error = slot.store->create(size, straight ? O_DIRECT : 0, slot.temporary);
      error != 0) {
    slot.store->give_back(size);
    slot.temporary.name.clear();
    return failed(slot, "cannot create a file for a value", error);
  }
  FileHead head{.key = slot.key,
                .identity = space().identity,
                .payload_size_bytes = source.size(),
                .payload_checksum = codec::xxh3_64(source),
                .expires_at_ms = ttl_ms > 0 ? wall_clock_ms() + ttl_ms : 0};
  encode_file_head(head, slot.head);
  const std::size_t rest = source.size() % kFileBlockBytes;
  if (rest > 0) {
    std::ranges::fill(slot.tail, std::byte{0});
    std::memcpy(slot.tail.data(), source.data() + (source.size() - rest), rest);
  }
  slot.lay_out(IoOperation::Kind::kWrite, slot.temporary.fd.get(), source);
  if (const int error = slot.store->step(FileSteps::Step::kWrite, slot.temporary.name);
      error != 0) {
    return failed(slot, "cannot write a value", error);
  }
  return false;
}

bool FileConnector::written(Slot& slot) {
  if (slot.error != 0) {
    return failed(slot, slot.syncing ? "cannot sync a value" : "cannot write a value", slot.error);
  }
  if (!slot.syncing) {
    if (slot.moved < slot.expected) return failed(slot, "cannot write all of a value", EIO);
    if (slot.task.job->options().ttl_ms > 0 &&
        ::ftruncate(slot.temporary.fd.get(), slot.temporary.size_bytes) != 0) {
      return failed(slot, "cannot extend a value", errno);
    }
    if (options_.fsync != Fsync::kNever) {
      slot.syncing = true;
      slot.fd_set(slot.temporary.fd.get());
      slot.kind =
          options_.fsync == Fsync::kData ? IoOperation::Kind::kSyncData : IoOperation::Kind::kSync;
      if (const int error = slot.store->step(FileSteps::Step::kSync, slot.temporary.name);
          error != 0) {
        return failed(slot, "cannot sync a value", error);
      }
      return false;
    }
  }
  const int error = slot.store->publish(slot.temporary, slot.name, options_.fsync == Fsync::kFull);
  if (is_of_one_place(error)) return done(slot, in_the_way(slot.name, error));
  if (error != 0) return failed(slot, "cannot put a value in its place", error);
  {
    const std::lock_guard lock(count_mutex_);
    stored_since_ = true;
  }
  const std::uint64_t size = slot.task.job->buffer(slot.task.index).size();
  return done(slot, {.status = Status::kOk, .size = size, .why = {}});
}

bool FileConnector::advance(Slot& slot) {
  try {
    return slot.task.job->options().verb == Verb::kGet ? received(slot) : written(slot);
  } catch (const std::exception& problem) {
    return done(slot, {.status = Status::kServerError, .size = 0, .why = problem.what()});
  }
}

bool FileConnector::done(Slot& slot, KeyOutcome answer) {
  if (answer.status == Status::kOk) failures_.store(0, std::memory_order_relaxed);
  slot.fd.reset();
  if (slot.store) slot.store->discard(slot.temporary);  // what was published is not discarded
  slot.store.reset();
  const Task task = std::move(slot.task);
  slot.task = {};
  complete(task, answer);  // the last touch: its buffer may be gone
  return true;
}

bool FileConnector::failed(Slot& slot, const char* action, int error) {
  return done(slot, failure(action, error));
}

bool FileConnector::refuse(Slot& slot, codec::FrameFault fault, std::uint64_t size) {
  refused(fault, slot.key);
  slot.store->remove(slot.name);
  const bool misfit = fault == codec::FrameFault::kSize;
  return done(slot, {.status = misfit ? Status::kSizeMismatch : Status::kCorrupt,
                     .size = size,
                     .why = std::string(codec::name(fault))});
}

}  // namespace kvferry::connector
