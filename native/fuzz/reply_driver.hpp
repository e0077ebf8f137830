#pragma once
// ReplyDriver: a Replies machine that is fed without a socket, in receives of any size.
//
// Tests and fuzzers share it. It keeps the promises that a connection keeps (plan, receive, tell)
// and checks the one that the machine makes: no command settles twice.
// Lifetime: batches and targets belong to the caller and outlive the driver.
// Failure: a broken promise throws std::logic_error, which fails a test and stops a fuzzer.

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/test_names.hpp"
#include "codec/checksum.hpp"
#include "codec/frame.hpp"
#include "codec/stripe.hpp"
#include "redis/replies.hpp"

namespace kvferry::redis {

// Memory that a reply may fill, between two guards that it may not.
class GuardedTarget {
 public:
  explicit GuardedTarget(std::size_t size) : memory_(size + 2 * kGuard, kFill), size_(size) {}

  [[nodiscard]] MutableBytes bytes() noexcept {
    return MutableBytes(memory_).subspan(kGuard, size_);
  }
  [[nodiscard]] std::string text() { return std::string(as_text(bytes())); }
  [[nodiscard]] bool intact() const {
    const auto is_fill = [](std::byte byte) { return byte == kFill; };
    return std::all_of(memory_.begin(), memory_.begin() + kGuard, is_fill) &&
           std::all_of(memory_.end() - kGuard, memory_.end(), is_fill);
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 64;
  static constexpr std::byte kFill{0xA5};
  std::vector<std::byte> memory_;
  std::size_t size_;
};

// The bytes of a server's answer to a framed GET: header and payload as one bulk.
inline std::string framed_reply(codec::Frame frame, std::string_view payload) {
  std::array<std::byte, codec::kFrameSizeBytes> header;
  codec::encode_frame(frame, header);
  return "$" + std::to_string(header.size() + payload.size()) + "\r\n" +
         std::string(as_text(header)) + std::string(payload) + "\r\n";
}

// The frame that a reader of `key` expects around an unstriped payload.
inline codec::Frame frame_for(std::string_view key, std::string_view payload,
                              std::uint64_t identity) {
  const std::uint64_t checksum = codec::xxh3_64(as_bytes(payload));
  return {.payload_size_bytes = payload.size(),
          .original_size_bytes = payload.size(),
          .payload_checksum = checksum,
          .identity = identity,
          .key_digest = codec::xxh3_64(as_bytes(key)),
          .generation = codec::generation_of(std::span(&checksum, 1))};
}

class ReplyDriver final : private ReplySink {
 public:
  explicit ReplyDriver(std::size_t drain_bytes_max = 64 * kKiB,
                       std::size_t value_bytes_max = 1 * kMiB)
      : replies_(*this, drain_bytes_max, value_bytes_max) {}

  [[nodiscard]] Replies& replies() noexcept { return replies_; }

  // Sends every command of the batch, as far as this machine is concerned.
  void expect(Batch& batch) {
    for (Command& command : batch.commands()) replies_.expect({&batch, &command});
  }
  void expect_ping() { replies_.expect({}); }

  // The stream brings `bytes`, at most `receive_size()` at a time. False: the stream is poisoned.
  bool deliver(std::string_view bytes, const std::function<std::size_t()>& receive_size) {
    while (!bytes.empty()) {
      const std::size_t moved = receive(bytes.substr(0, std::max<std::size_t>(receive_size(), 1)));
      bytes.remove_prefix(moved);
      if (!replies_.received(moved)) return false;
    }
    return true;
  }
  bool deliver(std::string_view bytes, std::size_t receive_size = SIZE_MAX) {
    return deliver(bytes, [=] { return receive_size; });
  }

  // The connection ended: what is in flight settles as UNAVAILABLE.
  void abandon() {
    replies_.abandon([this](Work work) { settled(work, Status::kUnavailable, "abandoned"); });
  }

  // "key=STATUS" or "key=STATUS(why)" for each command that settled, oldest first.
  [[nodiscard]] const std::string& trace() const noexcept { return trace_; }

 private:
  std::size_t receive(std::string_view bytes) {
    std::size_t moved = 0;
    for (const iovec& piece : replies_.plan()) {
      const std::size_t part = std::min(piece.iov_len, bytes.size() - moved);
      if (part > 0) std::memcpy(piece.iov_base, bytes.data() + moved, part);
      moved += part;
    }
    if (moved == 0) throw std::logic_error("plan() has no room for the next byte");
    return moved;
  }

  void settled(Work work, Status status, Reason why) override {
    if (!settled_.insert(work.command).second) throw std::logic_error("a command settled twice");
    if (!trace_.empty()) trace_ += ' ';
    trace_ += std::string(work.batch->key(*work.command)) + "=" + std::string(name(status));
    if (!why.text.empty()) trace_ += "(" + std::string(why.text) + ")";
    if (work.batch->settle(*work.command, status, why)) work.batch->finish();
  }

  // Here nobody sends it on: it counts as settled.
  void redirected(Work work, std::string_view answer) override {
    settled(work, Status::kUnavailable, answer);
  }

  Replies replies_;
  std::set<const Command*> settled_;
  std::string trace_;
};

}  // namespace kvferry::redis
