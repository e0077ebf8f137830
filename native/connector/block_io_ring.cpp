// BlockIo over io_uring, with the system calls themselves: what is needed of liburing is less than
// what it would cost to depend on it. Source: io_uring(7), io_uring_setup(2), io_uring_enter(2).

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/unique_fd.hpp"
#include "connector/block_io.hpp"

namespace kvferry::connector {
namespace {

int ring_setup(unsigned entries, io_uring_params* parameters) noexcept {
  return static_cast<int>(::syscall(__NR_io_uring_setup, entries, parameters));
}
int ring_enter(int fd, unsigned submit, unsigned complete, unsigned flags) noexcept {
  return static_cast<int>(::syscall(__NR_io_uring_enter, fd, submit, complete, flags, nullptr, 0));
}

// A mapping of the ring's memory.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int fd, std::size_t size, off_t offset) noexcept : size_(size) {
    memory_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);
  }
  Mapping(Mapping&& other) noexcept
      : memory_(std::exchange(other.memory_, MAP_FAILED)), size_(other.size_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping() {
    if (*this) ::munmap(memory_, size_);
  }
  explicit operator bool() const noexcept { return memory_ != MAP_FAILED; }
  template <typename T>
  [[nodiscard]] T* at(std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + offset);
  }

 private:
  void* memory_ = MAP_FAILED;
  std::size_t size_ = 0;
};

class RingIo final : public BlockIo {
 public:
  RingIo(UniqueFd fd, const io_uring_params& parameters, Mapping rings, Mapping entries) noexcept
      : fd_(std::move(fd)),
        depth_(parameters.sq_entries),
        rings_(std::move(rings)),
        entries_(std::move(entries)),
        submit_tail_(rings_.at<unsigned>(parameters.sq_off.tail)),
        submit_mask_(*rings_.at<unsigned>(parameters.sq_off.ring_mask)),
        submit_array_(rings_.at<unsigned>(parameters.sq_off.array)),
        complete_head_(rings_.at<unsigned>(parameters.cq_off.head)),
        complete_tail_(rings_.at<unsigned>(parameters.cq_off.tail)),
        complete_mask_(*rings_.at<unsigned>(parameters.cq_off.ring_mask)),
        completions_(rings_.at<io_uring_cqe>(parameters.cq_off.cqes)) {}

  [[nodiscard]] std::size_t depth() const noexcept override { return depth_; }

  void start(IoOperation& operation) override {
    const unsigned tail = *submit_tail_;  // nobody else writes it
    const unsigned index = tail & submit_mask_;
    io_uring_sqe& entry = entries_.at<io_uring_sqe>(0)[index];
    std::memset(&entry, 0, sizeof entry);
    entry.fd = operation.fd;
    entry.user_data = reinterpret_cast<std::uintptr_t>(&operation);
    switch (operation.kind) {
      case IoOperation::Kind::kRead:
      case IoOperation::Kind::kWrite:
        entry.opcode =
            operation.kind == IoOperation::Kind::kRead ? IORING_OP_READV : IORING_OP_WRITEV;
        entry.addr = reinterpret_cast<std::uintptr_t>(operation.pieces.data());
        entry.len = static_cast<unsigned>(operation.piece_count);
        entry.off = static_cast<std::uint64_t>(operation.offset);
        break;
      case IoOperation::Kind::kSyncData:
        entry.opcode = IORING_OP_FSYNC;
        entry.fsync_flags = IORING_FSYNC_DATASYNC;
        break;
      case IoOperation::Kind::kSync:
        entry.opcode = IORING_OP_FSYNC;
        break;
    }
    submit_array_[index] = index;
    // The kernel acquires it in io_uring_enter().
    std::atomic_ref(*submit_tail_).store(tail + 1, std::memory_order_release);
    ++unsubmitted_;
    submit(0);
  }

  IoOperation* wait() override {
    for (;;) {
      const unsigned head = *complete_head_;  // nobody else writes it
      // Pairs with the kernel's release of the completion.
      if (head == std::atomic_ref(*complete_tail_).load(std::memory_order_acquire)) {
        submit(1);
        continue;
      }
      const io_uring_cqe completion = completions_[head & complete_mask_];
      std::atomic_ref(*complete_head_).store(head + 1, std::memory_order_release);
      auto* const operation = reinterpret_cast<IoOperation*>(completion.user_data);
      if (!goes_on(*operation, completion.res)) return operation;
      start(*operation);
    }
  }

 private:
  // Hands over what is prepared; waits until `complete` operations have ended.
  void submit(unsigned complete) noexcept {
    const unsigned flags = complete > 0 ? IORING_ENTER_GETEVENTS : 0U;
    const int taken = ring_enter(fd_.get(), unsubmitted_, complete, flags);
    // EINTR, EAGAIN, EBUSY: the next wait() tries again.
    if (taken > 0) unsubmitted_ -= static_cast<unsigned>(taken);
  }

  const UniqueFd fd_;
  const std::size_t depth_;
  const Mapping rings_;
  const Mapping entries_;
  unsigned* const submit_tail_;
  const unsigned submit_mask_;
  unsigned* const submit_array_;
  unsigned* const complete_head_;
  unsigned* const complete_tail_;
  const unsigned complete_mask_;
  const io_uring_cqe* const completions_;
  unsigned unsubmitted_ = 0;
};

}  // namespace

Result<std::unique_ptr<BlockIo>> BlockIo::open_ring(std::size_t depth) {
  io_uring_params parameters{};
  UniqueFd fd(ring_setup(static_cast<unsigned>(depth), &parameters));
  if (!fd) return system_error("io_uring_setup", errno);
  // One mapping for both rings: Linux 5.4. Reads of a moved file offset and the like: 5.6.
  if ((parameters.features & IORING_FEAT_SINGLE_MMAP) == 0 ||
      (parameters.features & IORING_FEAT_NODROP) == 0) {
    return Error{Errc::kSystem, "the io_uring of this kernel is too old"};
  }
  const std::size_t submit_size =
      parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
  const std::size_t complete_size =
      parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe);
  Mapping rings(fd.get(), std::max(submit_size, complete_size), IORING_OFF_SQ_RING);
  Mapping entries(fd.get(), parameters.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
  if (!rings || !entries) return system_error("mapping an io_uring", errno);
  return std::unique_ptr<BlockIo>(
      std::make_unique<RingIo>(std::move(fd), parameters, std::move(rings), std::move(entries)));
}

}  // namespace kvferry::connector
