#pragma once
// Replies: the machine that matches what a connection receives with the commands it sent.
//
// It owns no socket. plan() says where the next bytes must go - straight into the caller's buffer
// when a payload is due, or where a coded one is decoded from - and received() says how many came.
// Every reply settles the oldest command in flight; what cannot be trusted poisons the stream, and
// its connection must be closed.
//
// Threads: one. Lifetime: a payload target is written only between plan() and received(), and
// never again after release().
// Limits: kInFlightMax commands; 16 KiB of scratch; unwanted payload is drained up to a limit.

#include <sys/uio.h>

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "codec/checksum.hpp"
#include "codec/coded.hpp"
#include "codec/frame.hpp"
#include "redis/work_queue.hpp"
#include "resp/parser.hpp"
#include "resp/value.hpp"

namespace kvferry::redis {

// Where outcomes go.
class ReplySink {
 public:
  virtual void settled(Work work, Status status, Reason why) = 0;
  // The server says who has the key: it answered MOVED, ASK or TRYAGAIN.
  virtual void redirected(Work work, std::string_view answer) = 0;

 protected:
  ~ReplySink() = default;
};

class Replies {
 public:
  static constexpr std::size_t kInFlightMax = 1024;
  static constexpr std::size_t kScratchBytes = 16 * kKiB;

  Replies(ReplySink& sink, std::size_t drain_bytes_max, std::size_t value_bytes_max);

  // A command was put into the outbox. An empty Work is a PING, an ASKING or an AUTH.
  void expect(Work work);
  [[nodiscard]] std::size_t in_flight() const noexcept { return tail_ - head_; }
  [[nodiscard]] std::size_t room() const noexcept { return kInFlightMax - in_flight(); }
  [[nodiscard]] bool full() const noexcept { return room() == 0; }

  // Where to receive next: at most three pieces, valid until received() or release().
  std::span<const iovec> plan() noexcept;
  // Payload bytes of the present reply that have yet to come; 0 between replies.
  [[nodiscard]] std::uint64_t owed() const noexcept { return parser_.payload_remaining(); }

  // Payload bytes of the oldest command that are in its target already.
  [[nodiscard]] std::size_t landed() const noexcept {
    return destination_ == Destination::kTarget || destination_ == Destination::kCoded ? landed_
                                                                                       : 0;
  }

  // The first `count` bytes of plan() were filled. False: the stream is poisoned, see error().
  bool received(std::size_t count);
  // By how much what that call decoded is more than the bytes that it was decoded from.
  [[nodiscard]] std::ptrdiff_t gained() const noexcept { return gained_; }
  [[nodiscard]] const Error& error() const noexcept { return error_; }
  // It was our choice: a value that nobody wants is too long to be read away.
  [[nodiscard]] bool declined() const noexcept { return declined_; }
  // The server answered in a way that says: connect anew (READONLY, NOAUTH, ...).
  [[nodiscard]] bool wants_reconnect() const noexcept { return wants_reconnect_; }

  // Withdraws every command whose batch was cancelled or is past its deadline: it settles, its
  // target is not touched again, and its reply will be drained. False: more payload is owed than
  // may be drained, so the connection must be closed.
  bool release(Nanos now);

  // Replies still owed for commands that were released.
  [[nodiscard]] std::size_t overdue() const noexcept { return released_.count(); }

  // The earliest deadline in flight; kNever when nothing is.
  [[nodiscard]] Nanos next_deadline() const noexcept;

  // Takes back everything in flight, oldest first, for a connection that ended; starts afresh.
  template <typename Visit>
  void abandon(Visit visit) {
    for (std::size_t index = head_; index != tail_; ++index) {
      if (const Work work = std::exchange(slot(index), {})) visit(work);
    }
    reset();
  }

 private:
  enum class Destination : std::uint8_t { kFrame, kTarget, kCoded, kText, kReply, kDrain };

  // An empty Work in a slot: a PING or its like, or a command that was released.
  [[nodiscard]] Work& slot(std::size_t index) noexcept { return (*slots_)[index % kInFlightMax]; }
  [[nodiscard]] const Work& slot(std::size_t index) const noexcept {
    return (*slots_)[index % kInFlightMax];
  }

  // Each returns false when the stream is poisoned.
  bool parse();
  bool store_payload(ByteView bytes);
  bool on_token(const resp::Token& token);
  bool on_bulk(std::uint64_t length);
  bool on_frame_header();
  bool on_payload_end();
  bool on_scalar(const resp::Token& token);
  // Part of the reply to a kCall, whose shape may be any; also to one that was released.
  bool on_call(const resp::Token& token);
  bool on_released_call(const resp::Token& token);
  // The whole reply is an error.
  [[nodiscard]] bool is_error(const resp::Token& token) const noexcept;
  bool on_server_error(std::string_view text);
  bool surprise();
  bool drain(std::uint64_t length);
  bool poison(std::string_view why, Errc code = Errc::kProtocol);

  void note_landed(ByteView piece) noexcept;
  bool decode(std::size_t count);
  Work take_front();
  void settle_front(Status status, Reason why = {});
  void reset() noexcept;

  ReplySink& sink_;
  const std::size_t drain_bytes_max_;
  const std::size_t value_bytes_max_;
  resp::Parser parser_;
  std::unique_ptr<std::array<Work, kInFlightMax>> slots_;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
  std::bitset<kInFlightMax> released_;        // by slot
  std::bitset<kInFlightMax> released_calls_;  // of those

  // The bulk that is coming in.
  Destination destination_ = Destination::kDrain;
  std::size_t landed_ = 0;        // bytes of the target that are filled
  Status outcome_ = Status::kOk;  // how the command settles once the payload is complete
  std::string_view why_;          // static text
  std::string text_;              // of a bulk error
  resp::ValueBuilder call_;
  codec::Xxh3 checksum_;
  codec::StripeDecoder decoder_;
  codec::Frame frame_;
  std::array<std::byte, codec::kFrameSizeBytes> frame_bytes_{};
  std::size_t frame_filled_ = 0;

  std::unique_ptr<std::array<std::byte, kScratchBytes>> scratch_;
  std::size_t scratch_begin_ = 0;
  std::size_t scratch_end_ = 0;
  std::array<iovec, 3> pieces_{};
  std::size_t planned_frame_ = 0;
  std::size_t planned_target_ = 0;
  std::ptrdiff_t gained_ = 0;
  Error error_;  // why the stream is poisoned
  bool wants_reconnect_ = false;
  bool declined_ = false;
};

}  // namespace kvferry::redis
