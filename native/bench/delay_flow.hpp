#pragma once
// Flow: one direction of a proxied connection, with or without a delay. Counts what it takes in.
//
// Threads: one. Lifetime: both sockets outlive the flow.

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <deque>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "bench/options.hpp"
#include "bench/wire_log.hpp"

namespace kvferry::bench {

inline constexpr std::size_t kPieceBytes = 256 * 1024;
inline constexpr std::size_t kQueueBytesMax =
    128 * 1024 * 1024;  // per direction: delay x bandwidth
inline constexpr std::size_t kPipeBytes = 1024 * 1024;

// One end of a connection. Edge-triggered: the flags hold until a call says EAGAIN.
struct Socket {
  UniqueFd fd;
  bool readable = true;
  bool writable = true;
};

enum class Step { kProgress, kIdle, kEnd, kBroken };

inline bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// Bytes from one socket to the other. step() moves some and says whether more may follow.
class Flow {
 public:
  Flow(Socket& from, Socket& to, std::uint64_t& bytes) : from_(from), to_(to), bytes_(bytes) {}
  virtual ~Flow() = default;
  virtual Step step(Nanos now) = 0;
  [[nodiscard]] virtual Nanos due() const { return kNever; }
  [[nodiscard]] bool ended() const { return ended_; }

 protected:
  Step end() {
    ended_ = true;
    ::shutdown(to_.fd.get(), SHUT_WR);
    return Step::kEnd;
  }
  Socket& from_;
  Socket& to_;
  std::uint64_t& bytes_;
  bool ended_ = false;
};

// Straight through: socket -> pipe -> socket; the kernel moves pages, not bytes.
class SpliceFlow final : public Flow {
 public:
  SpliceFlow(Socket& from, Socket& to, std::uint64_t& bytes) : Flow(from, to, bytes) {
    int ends[2];
    if (::pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) die_errno("pipe");
    out_ = UniqueFd(ends[0]);
    in_ = UniqueFd(ends[1]);
    ::fcntl(in_.get(), F_SETPIPE_SZ, static_cast<int>(kPipeBytes));
  }

  Step step(Nanos) override {
    if (held_ == 0 && from_.readable) {
      const ssize_t n = move(from_.fd.get(), in_.get(), kPipeBytes);
      if (n == 0) return end();
      if (n < 0 && !would_block()) return Step::kBroken;
      if (n < 0) from_.readable = false;
      held_ = n > 0 ? static_cast<std::size_t>(n) : 0;
      bytes_ += held_;
    }
    if (held_ == 0 || !to_.writable) return Step::kIdle;
    const ssize_t n = move(out_.get(), to_.fd.get(), held_);
    if (n < 0 && !would_block()) return Step::kBroken;
    if (n <= 0) {
      to_.writable = false;
      return Step::kIdle;
    }
    held_ -= static_cast<std::size_t>(n);
    return Step::kProgress;
  }

 private:
  static ssize_t move(int from, int to, std::size_t size) {
    return ::splice(from, nullptr, to, nullptr, size, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  }
  UniqueFd out_;
  UniqueFd in_;
  std::size_t held_ = 0;
};

// Each piece waits a part of the round trip from its arrival. Pieces are reused, so that a steady
// flow allocates nothing. The round trip may change: order stays. A reader of commands sees all.
class DelayFlow final : public Flow {
 public:
  DelayFlow(Socket& from, Socket& to, std::uint64_t& bytes, const Nanos& rtt, int parts,
            std::unique_ptr<CommandReader> reader = nullptr)
      : Flow(from, to, bytes), rtt_(rtt), parts_(parts), reader_(std::move(reader)) {}

  Step step(Nanos now) override {
    const Step in = take(now);
    if (in == Step::kBroken) return in;
    const Step out = give(now);
    if (out != Step::kIdle) return out;
    return in;
  }

  // Nothing is due while the receiver is full: its EPOLLOUT comes first.
  [[nodiscard]] Nanos due() const override {
    return queue_.empty() || !to_.writable ? kNever : queue_.front()->due;
  }

 private:
  struct Piece {
    Nanos due;
    std::size_t begin;
    std::size_t size;
    std::array<char, kPieceBytes> bytes;
  };

  Step take(Nanos now) {
    if (closing_ || !from_.readable || queued_ >= kQueueBytesMax) return Step::kIdle;
    if (spare_.empty()) spare_.push_back(std::unique_ptr<Piece>(new Piece));
    Piece& piece = *spare_.back();
    const ssize_t n = ::recv(from_.fd.get(), piece.bytes.data(), kPieceBytes, 0);
    if (n < 0 && !would_block()) return Step::kBroken;
    if (n < 0) {
      from_.readable = false;
      return Step::kIdle;
    }
    if (n == 0) {
      closing_ = true;
      return Step::kProgress;
    }
    if (reader_) reader_->take({piece.bytes.data(), static_cast<std::size_t>(n)}, now);
    bytes_ += static_cast<std::size_t>(n);
    piece.due = now + rtt_ / parts_;
    piece.begin = 0;
    piece.size = static_cast<std::size_t>(n);
    queued_ += piece.size;
    queue_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    return Step::kProgress;
  }

  Step give(Nanos now) {
    if (queue_.empty()) return closing_ ? end() : Step::kIdle;
    Piece& piece = *queue_.front();
    if (!to_.writable || piece.due > now) return Step::kIdle;
    const ssize_t n = ::send(to_.fd.get(), piece.bytes.data() + piece.begin,
                             piece.size - piece.begin, MSG_NOSIGNAL);
    if (n < 0 && !would_block()) return Step::kBroken;
    if (n < 0) {
      to_.writable = false;
      return Step::kIdle;
    }
    piece.begin += static_cast<std::size_t>(n);
    queued_ -= static_cast<std::size_t>(n);
    if (piece.begin == piece.size) {
      spare_.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    return Step::kProgress;
  }

  const Nanos& rtt_;
  const int parts_;
  const std::unique_ptr<CommandReader> reader_;
  bool closing_ = false;  // the sender has ended; the queue is still to be sent
  std::size_t queued_ = 0;
  std::deque<std::unique_ptr<Piece>> queue_;
  std::vector<std::unique_ptr<Piece>> spare_;
};

}  // namespace kvferry::bench
