#include "node/reply_buffer.hpp"

namespace kvferry::node {

std::string& ReplyBuffer::text() {
  if (items_.empty() || items_.back().value != nullptr) items_.emplace_back();
  return items_.back().text;
}

void ReplyBuffer::value(ValuePtr value, InFlight::Ticket ticket) {
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
    offset_ -= items_.front().size();
    items_.pop_front();
  }
}

std::size_t ReplyBuffer::bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Item& item : items_) bytes += item.size();
  return bytes - offset_;
}

}  // namespace kvferry::node
