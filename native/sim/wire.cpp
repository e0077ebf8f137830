#include "sim/wire.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kvferry::sim {

bool Wire::readable() const noexcept {
  if (state == State::kConnecting) return rounds > 0 && round_done && awaits_readable;
  if (reset || !established) return true;
  const std::size_t here = down.here().size();
  if (here >= std::max<std::size_t>(low_water, 1)) return true;
  return ended && down.travelling() == 0;
}

bool Wire::writable() const noexcept {
  switch (state) {
    case State::kConnecting:
      return rounds > 0 && round_done && !awaits_readable;
    case State::kRefused:
      return true;
    default:
      return reset || !established || up.travelling() < room;
  }
}

SimStream::~SimStream() {
  context_.journal.note("stream closed", fd_);
  wire_.client_holds = false;
  wire_.watcher = nullptr;
  // A socket that is closed with unread bytes sends a reset, which may overtake what was sent.
  if (context_.random.one_in(2)) wire_.up.cut();
}

net::IoResult SimStream::finish_connect() noexcept {
  using enum net::IoState;
  if (wire_.state == Wire::State::kRefused) return {kFailed, 0, ECONNREFUSED};
  if (wire_.reset) return {kFailed, 0, ECONNRESET};
  if (wire_.state == Wire::State::kOpen) {
    wire_.established = true;
    return {kOk, 0, 0};
  }
  if (wire_.rounds > 0 && wire_.round_done) {
    wire_.round_done = false;
    --wire_.rounds;
    wire_.awaits_readable = context_.random.one_in(2);
  }
  return {kWouldBlock, 0, 0};
}

void SimStream::check_lent(std::span<const iovec> pieces, const char* what) noexcept {
  for (const iovec& piece : pieces) {
    if (piece.iov_len > 0 && !context_.buffers.lent(piece.iov_base)) {
      context_.journal.fail(std::string(what) + " memory of a batch that is finished");
    }
  }
}

void SimStream::plant_landing(std::span<const iovec> pieces) noexcept {
  if (wire_.remembered.iov_len > 0) std::memset(wire_.remembered.iov_base, 0, 1);
  wire_.remembered = {};
  for (const iovec& piece : pieces) {
    if (context_.buffers.owns(piece.iov_base)) wire_.remembered = piece;
  }
}

void SimStream::plant_sending(std::span<const iovec> pieces) noexcept {
  check_lent({&wire_.remembered, 1}, "a send from");
  for (const iovec& piece : pieces) {
    if (context_.buffers.owns(piece.iov_base)) wire_.remembered = piece;
  }
}

net::IoResult SimStream::receive(std::span<const iovec> pieces) noexcept {
  using enum net::IoState;
  check_lent(pieces, "a receive into");
  if (context_.plant == Plant::kLateLanding) plant_landing(pieces);
  const std::string_view here = wire_.down.here();
  if (here.empty()) {
    if (wire_.reset) return {kFailed, 0, ECONNRESET};
    if (wire_.ended && wire_.down.travelling() == 0) return {kClosed, 0, 0};
    return {kWouldBlock, 0, 0};
  }
  std::size_t moved = 0;
  for (const iovec& piece : pieces) {
    const std::size_t part = std::min(piece.iov_len, here.size() - moved);
    if (part > 0) std::memcpy(piece.iov_base, here.data() + moved, part);
    moved += part;
  }
  wire_.down.take(moved);
  context_.journal.note("received", fd_, static_cast<std::int64_t>(moved));
  return {kOk, moved, 0};
}

net::IoResult SimStream::send(std::span<const iovec> pieces) noexcept {
  using enum net::IoState;
  check_lent(pieces, "a send from");
  if (context_.plant == Plant::kLateSending) plant_sending(pieces);
  if (wire_.reset) return {kFailed, 0, ECONNRESET};
  if (wire_.ended && context_.random.one_in(2)) return {kFailed, 0, EPIPE};
  std::size_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  const std::size_t unsent = wire_.up.travelling();
  std::size_t part = unsent < wire_.room ? std::min(total, wire_.room - unsent) : 0;
  if (part == 0) return {kWouldBlock, 0, 0};
  if (context_.random.one_in(4)) part = 1 + context_.random.below(part);
  std::size_t moved = 0;
  for (const iovec& piece : pieces) {
    const std::size_t taken = std::min(piece.iov_len, part - moved);
    wire_.up.append(piece.iov_base, taken);
    const bool payload = context_.buffers.owns(piece.iov_base) && taken > 8;
    if (context_.plant == Plant::kTornWrite && payload) wire_.up.damage_last();
    moved += taken;
  }
  context_.journal.note("sent", fd_, static_cast<std::int64_t>(moved));
  return {kOk, moved, 0};
}

void SimStream::set_receive_low_water(std::size_t bytes) noexcept {
  wire_.low_water = context_.plan.low_water ? bytes : 1;
}

}  // namespace kvferry::sim
