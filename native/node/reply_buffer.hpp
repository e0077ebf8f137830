#pragma once
// ReplyBuffer: what one connection has still to send, in order: text, and values from their own
// memory.
//
// A value is held until its last byte was sent, or the outbox goes.
// Threads: one.

#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <span>
#include <string>

#include "node/in_flight.hpp"
#include "node/values.hpp"

namespace kvferry::node {

class ReplyBuffer {
 public:
  // Text goes to the end of this.
  [[nodiscard]] std::string& text();
  void value(ValuePtr value, InFlight::Ticket ticket);

  // Fills `pieces` with what comes next; how many. Valid until anything else is called.
  std::size_t gather(std::span<iovec> pieces) const;
  // Requires: at most what the last gather() named.
  void sent(std::size_t bytes);

  [[nodiscard]] bool empty() const noexcept { return bytes() == 0; }
  [[nodiscard]] std::size_t bytes() const noexcept { return text_bytes() + value_bytes_ - offset_; }
  [[nodiscard]] std::size_t text_bytes() const noexcept {
    return text_bytes_ + (items_.empty() ? 0 : items_.back().text.size());
  }
  // Of the values that wait, whole.
  [[nodiscard]] std::size_t value_bytes() const noexcept { return value_bytes_; }
  // Memory of its own, beside the values.
  [[nodiscard]] std::size_t held_bytes() const noexcept;

 private:
  static constexpr std::size_t kValueCost = 512;           // of holding one
  static constexpr std::size_t kTextBytesMax = 16 * kKiB;  // then a new one: what was sent goes

  struct Item {
    std::string text;
    ValuePtr value;  // or this
    InFlight::Ticket ticket;

    [[nodiscard]] std::size_t size() const noexcept {
      return value != nullptr ? value->size_bytes() : text.size();
    }
  };

  std::deque<Item> items_;
  std::size_t text_bytes_ = 0;  // of all but the last item
  std::size_t value_bytes_ = 0;
  std::size_t offset_ = 0;  // of the first item that was sent
};

}  // namespace kvferry::node
