#pragma once
// Outbox: what a connection still has to send, in order: command text from its own memory, payload
// from the caller's, without a copy of either, or from its own where it is encoded.
//
// Threads: one. Lifetime: payload stays valid until it is sent or the outbox is cleared.
// Limits: kTextBytesMax and kPiecesMax; room_for_command() says when to stop adding.

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.hpp"
#include "base/check.hpp"
#include "redis/coded_payloads.hpp"

namespace kvferry::redis {

class Outbox {
 public:
  static constexpr std::size_t kTextBytesMax = 64 * kKiB;
  static constexpr std::size_t kPiecesMax = 256;
  static constexpr std::size_t kPiecesPerCall = 64;
  static constexpr std::size_t kLargeBytes = 1 * kMiB;       // docs/decisions/0002
  static constexpr std::size_t kCommandBytesMax = 1 * kKiB;  // text of one command, key included

  Outbox() : text_(std::make_unique_for_overwrite<std::array<std::byte, kTextBytesMax>>()) {}

  [[nodiscard]] bool empty() const noexcept { return first_ == count_; }
  [[nodiscard]] bool room_for_command() const noexcept {
    return kTextBytesMax - text_used_ >= kCommandBytesMax && kPiecesMax - count_ >= 3;
  }

  // Free memory for command text; take_text() then says how much of its front was used.
  [[nodiscard]] MutableBytes text_space() noexcept {
    return MutableBytes(*text_).subspan(text_used_);
  }
  void take_text(std::size_t size) {
    check(size <= kTextBytesMax - text_used_, "a command fits where there was room for one");
    std::byte* begin = text_->data() + text_used_;
    text_used_ += size;
    add({begin, size});
  }
  void add_payload(ByteView payload) { add(payload); }
  // Adds the payload that `coded()` holds; false: it holds none.
  bool add_held() {
    if (coded_.held().empty()) return false;
    add(coded_.held());
    coded_.added(added_total_);
    return true;
  }
  [[nodiscard]] CodedPayloads& coded() noexcept { return coded_; }

  // The next pieces to send in one call. A large payload begins a call of its own: a server that
  // has read the command before the value arrives receives the value where it will stay. Of a
  // smaller one there is less to move than a call and a wake-up cost.
  [[nodiscard]] std::span<const iovec> pieces() const noexcept {
    std::size_t end = first_ + 1;
    while (end < count_ && end - first_ < kPiecesPerCall && pieces_[end].iov_len < kLargeBytes) {
      ++end;
    }
    return std::span(pieces_).subspan(first_, end - first_);
  }

  // The first `bytes` of pieces() were sent.
  void sent(std::size_t bytes) {
    sent_total_ += bytes;
    while (bytes > 0) {
      check(first_ < count_, "no more is sent than there was to send");
      iovec& piece = pieces_[first_];
      const std::size_t part = std::min(bytes, piece.iov_len);
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + part;
      piece.iov_len -= part;
      bytes -= part;
      if (piece.iov_len == 0) ++first_;
    }
    coded_.sent(sent_total_);
    if (empty()) first_ = count_ = text_used_ = 0;
  }

  // Positions in everything that was ever added: what ends at or before sent_total() is sent.
  [[nodiscard]] std::uint64_t added_total() const noexcept { return added_total_; }
  [[nodiscard]] std::uint64_t sent_total() const noexcept { return sent_total_; }

  void clear() {
    coded_.clear();
    first_ = count_ = text_used_ = 0;
    sent_total_ = added_total_;
  }

 private:
  void add(ByteView bytes) {
    if (bytes.empty()) return;
    added_total_ += bytes.size();
    if (!empty()) {
      iovec& last = pieces_[count_ - 1];
      if (static_cast<std::byte*>(last.iov_base) + last.iov_len == bytes.data()) {
        last.iov_len += bytes.size();
        return;
      }
    }
    check(count_ < kPiecesMax, "commands are added while there is room for one");
    pieces_[count_++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  }

  std::unique_ptr<std::array<std::byte, kTextBytesMax>> text_;
  std::size_t text_used_ = 0;
  std::array<iovec, kPiecesMax> pieces_{};
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::uint64_t added_total_ = 0;
  std::uint64_t sent_total_ = 0;
  CodedPayloads coded_;
};

}  // namespace kvferry::redis
