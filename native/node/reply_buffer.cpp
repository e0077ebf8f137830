#include "node/reply_buffer.hpp"

#include <algorithm>

namespace kvferry::node {

std::string& ReplyBuffer::text() {
  if (items_.empty() || items_.back().value != nullptr ||
      items_.back().text.size() > kTextBytesMax) {
    text_bytes_ = text_bytes();
    items_.emplace_back();
  }
  return items_.back().text;
}

void ReplyBuffer::value(ValuePtr value, InFlight::Ticket ticket) {
  text_bytes_ = text_bytes();
  value_bytes_ += value->size_bytes();
  items_.push_back({.text = {}, .value = std::move(value), .ticket = std::move(ticket)});
}

std::size_t ReplyBuffer::gather(std::span<iovec> pieces) const {
  std::size_t count = 0;
  std::size_t offset = offset_;
  for (const Item& item : items_) {
    while (offset < item.size() && count < pieces.size()) {
      if (item.value != nullptr) {
        const MutableBytes piece = item.value->piece(offset);
        pieces[count++] = {.iov_base = piece.data(), .iov_len = piece.size()};
        offset += piece.size();
      } else {
        // sendmsg() only reads it.
        pieces[count++] = {.iov_base = const_cast<char*>(item.text.data()) + offset,
                           .iov_len = item.text.size() - offset};
        offset = item.text.size();
      }
    }
    if (count == pieces.size()) break;
    offset = 0;
  }
  return count;
}

void ReplyBuffer::sent(std::size_t bytes) {
  offset_ += bytes;
  while (!items_.empty() && offset_ >= items_.front().size()) {
    const Item& item = items_.front();
    offset_ -= item.size();
    if (item.value != nullptr) {
      value_bytes_ -= item.size();
    } else if (items_.size() > 1) {
      text_bytes_ -= item.size();
    }
    items_.pop_front();
  }
}

std::size_t ReplyBuffer::held_bytes() const noexcept {
  // The memory of a text doubles as it grows.
  const std::size_t last = items_.empty() ? 0 : items_.back().text.capacity();
  return last + 2 * text_bytes_ + items_.size() * kValueCost;
}

}  // namespace kvferry::node
