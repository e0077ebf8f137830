// The file driver's way of one value: get and set, step by step.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "codec/checksum.hpp"
#include "connector/file.hpp"
#include "connector/file_slot.hpp"

namespace kvferry::connector {
namespace {

constexpr std::int64_t kYoungSeconds = 10;  // a read makes a value young again after so long

bool make_room(FileStore& store, const std::string& name, std::int64_t size_bytes) {
  if (store.reserve(size_bytes)) return true;
  // A value replaces its like without needing a place for both: the old one goes first.
  return store.remove(name) == 0 && store.reserve(size_bytes);
}

}  // namespace

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
