#include "connector/block_io.hpp"

#include <unistd.h>

#include <cerrno>

namespace kvferry::connector {
namespace {

// One operation at a time, in the thread that starts it.
class PlainIo final : public BlockIo {
 public:
  [[nodiscard]] std::size_t depth() const noexcept override { return 1; }

  void start(IoOperation& operation) override {
    while (goes_on(operation, attempt(operation))) {
    }
    ended_ = &operation;
  }
  IoOperation* wait() override { return ended_; }

 private:
  static ssize_t attempt(const IoOperation& operation) noexcept {
    const auto* pieces = operation.pieces.data();
    const int count = static_cast<int>(operation.piece_count);
    ssize_t done = 0;
    switch (operation.kind) {
      case IoOperation::Kind::kRead:
        done = ::preadv(operation.fd, pieces, count, operation.offset);
        break;
      case IoOperation::Kind::kWrite:
        done = ::pwritev(operation.fd, pieces, count, operation.offset);
        break;
      case IoOperation::Kind::kSyncData:
        done = ::fdatasync(operation.fd);
        break;
      case IoOperation::Kind::kSync:
        done = ::fsync(operation.fd);
        break;
    }
    return done < 0 ? -errno : done;
  }

  IoOperation* ended_ = nullptr;
};

}  // namespace

std::unique_ptr<BlockIo> BlockIo::open_plain() { return std::make_unique<PlainIo>(); }

bool BlockIo::goes_on(IoOperation& operation, ssize_t count) noexcept {
  if (count == -EINTR || count == -EAGAIN) return true;
  if (count < 0) {
    operation.error = static_cast<int>(-count);
    return false;
  }
  const bool moves =
      operation.kind == IoOperation::Kind::kRead || operation.kind == IoOperation::Kind::kWrite;
  if (!moves || count == 0) return false;
  auto left = static_cast<std::size_t>(count);
  operation.moved += left;
  operation.offset += count;
  std::size_t kept = 0;
  for (std::size_t index = 0; index < operation.piece_count; ++index) {
    iovec piece = operation.pieces[index];
    const std::size_t taken = left < piece.iov_len ? left : piece.iov_len;
    left -= taken;
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + taken;
    piece.iov_len -= taken;
    if (piece.iov_len > 0) operation.pieces[kept++] = piece;
  }
  operation.piece_count = kept;
  return kept > 0;
}

}  // namespace kvferry::connector
