#pragma once
// BlockIo: reads and writes of files, some of them under way at a time.
//
// Through io_uring where the kernel lets us, else one after another with preadv and pwritev. An
// operation runs to its end: what the kernel did in part is continued.
//
// Threads: one. Lifetime: an operation and its memory are the kernel's from start() until wait()
// returned it; there is no way to take them back.

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <memory>

#include "base/result.hpp"

namespace kvferry::connector {

struct IoOperation {
  enum class Kind : std::uint8_t { kRead, kWrite, kSyncData, kSync };

  Kind kind = Kind::kRead;
  int fd = -1;
  std::array<iovec, 3> pieces{};
  std::size_t piece_count = 0;
  off_t offset = 0;
  // Afterwards: how many bytes were moved in all, and the errno that ended it or 0. Fewer bytes
  // without an error: the file ended.
  std::size_t moved = 0;
  int error = 0;

  void add(void* data, std::size_t size) noexcept { pieces[piece_count++] = {data, size}; }
};

class BlockIo {
 public:
  virtual ~BlockIo() = default;
  // Fails with: kSystem when the kernel has no io_uring for us.
  static Result<std::unique_ptr<BlockIo>> open_ring(std::size_t depth);
  static std::unique_ptr<BlockIo> open_plain();

  // How many operations may be under way.
  [[nodiscard]] virtual std::size_t depth() const noexcept = 0;
  // Requires: fewer than depth() are under way.
  virtual void start(IoOperation& operation) = 0;
  // An operation that has ended. Requires: one is under way.
  virtual IoOperation* wait() = 0;

 protected:
  // Whether more is to be done after the kernel moved `count` bytes (or failed with -errno); then
  // the pieces are what is left.
  static bool goes_on(IoOperation& operation, ssize_t count) noexcept;
};

}  // namespace kvferry::connector
