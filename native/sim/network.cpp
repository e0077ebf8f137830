#include "sim/network.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/addresses.hpp"

namespace kvferry::sim {

Network::Network(const StreamContext& context, std::function<Welcome(std::size_t)> welcome)
    : context_(context), welcome_(std::move(welcome)) {}

Result<std::unique_ptr<net::Stream>> Network::open(const net::Address& address, std::string_view) {
  const auto free = std::ranges::find_if(wires_, [](const auto& wire) { return !wire->in_use(); });
  const auto index = static_cast<std::size_t>(free - wires_.begin());
  if (free == wires_.end()) wires_.push_back(std::make_unique<Wire>());
  Wire& wire = *wires_[index];
  wire = Wire{};
  wire.node = node_at(address);
  const bool nowhere = wire.node == kNowhere;
  if (!nowhere && welcome_(wire.node) == Welcome::kRefuses && context_.random.one_in(4)) {
    return Error{Errc::kConnect, "refused at once"};
  }
  wire.state = Wire::State::kConnecting;
  wire.client_holds = true;
  if (nowhere) wire.frozen_until = kNever;
  const std::size_t narrow = 1 + context_.random.below(64) + context_.plan.value_bytes_max / 16;
  wire.room = context_.random.one_in(4) ? narrow : 128 * kKiB;
  if (context_.plan.pieces == Pieces::kWhole) wire.room = 16 * kMiB;
  if (context_.random.one_in(8)) wire.rounds = 1 + static_cast<int>(context_.random.below(3));
  context_.journal.note("open", static_cast<std::int64_t>(index),
                        static_cast<std::int64_t>(wire.node));
  return std::unique_ptr<net::Stream>(
      std::make_unique<SimStream>(context_, wire, static_cast<int>(index)));
}

bool Network::step() {
  const std::size_t count = wires_.size();
  if (count == 0) return false;
  const std::size_t start = context_.random.below(count);
  for (std::size_t offset = 0; offset < count; ++offset) {
    const std::size_t index = (start + offset) % count;
    Wire& wire = *wires_[index];
    if (wire.in_use() && !wire.frozen(context_.journal.now()) && step(wire, index)) return true;
  }
  return false;
}

bool Network::step(Wire& wire, std::size_t index) {
  const auto name = static_cast<std::int64_t>(index);
  if (wire.state == Wire::State::kConnecting) {
    if (!wire.client_holds) return false;
    switch (welcome_(wire.node)) {
      case Welcome::kSilent:
        return false;
      case Welcome::kRefuses:
        wire.state = Wire::State::kRefused;
        context_.journal.note("refused", name);
        return true;
      case Welcome::kAccepts:
        break;
    }
    if (wire.rounds > 0) {
      if (wire.round_done) {
        wire.round_done = wire.rounds > 0;
        return false;  // the client's turn
      }
      wire.round_done = true;
      return true;
    }
    wire.state = Wire::State::kOpen;
    wire.node_holds = true;
    context_.journal.note("connected", name);
    return true;
  }
  if (wire.state != Wire::State::kOpen) return false;
  const std::size_t up = wire.node_holds ? wire.up.travelling() : 0;
  const std::size_t down = wire.client_holds ? wire.down.travelling() : 0;
  if (up == 0 && down == 0) {
    // The node notices the end once it has read everything.
    if (!wire.client_holds && wire.node_holds && wire.up.here().empty()) wire.node_holds = false;
    return false;
  }
  const bool upwards = down == 0 || (up > 0 && context_.random.one_in(2));
  Pipe& pipe = upwards ? wire.up : wire.down;
  const std::size_t moved = portion(upwards ? up : down);
  pipe.arrive(moved);
  context_.journal.note(upwards ? "arrived up" : "arrived down", name,
                        static_cast<std::int64_t>(moved));
  return true;
}

std::size_t Network::portion(std::size_t bytes) noexcept {
  Random& random = context_.random;
  switch (context_.plan.pieces) {
    case Pieces::kWhole:
      return bytes;
    case Pieces::kMixed:
      return random.one_in(3) ? 1 : random.one_in(2) ? 1 + random.below(bytes) : bytes;
    case Pieces::kTiny:
      return std::min<std::size_t>(bytes, 1 + random.below(4));
  }
  return bytes;
}

Nanos Network::next() const noexcept {
  Nanos earliest = kNever;
  for (const auto& wire : wires_) {
    if (wire->in_use() && wire->frozen(context_.journal.now())) {
      earliest = std::min(earliest, wire->frozen_until);
    }
  }
  return earliest;
}

Wire* Network::pick_open() noexcept {
  const std::size_t count = wires_.size();
  const std::size_t start = count == 0 ? 0 : context_.random.below(count);
  for (std::size_t offset = 0; offset < count; ++offset) {
    Wire& wire = *wires_[(start + offset) % count];
    if (wire.client_holds && wire.node_holds && !wire.reset) return &wire;
  }
  return nullptr;
}

void Network::reset(Wire& wire) noexcept {
  wire.reset = true;
  wire.node_holds = false;
  wire.frozen_until = 0;
  wire.up.clear();
  wire.down.cut();
}

void Network::close_from_node(Wire& wire) noexcept {
  wire.ended = true;
  wire.node_holds = false;
  wire.up.clear();
}

void Network::cut_reply(Wire& wire) noexcept {
  if (const std::size_t travels = wire.down.travelling(); travels > 0) {
    wire.down.arrive(context_.random.below(travels + 1));
  }
  reset(wire);
}

void Network::drop_node(std::size_t node, bool silently) noexcept {
  for (const auto& wire : wires_) {
    if (!wire->in_use() || wire->node != node || wire->state != Wire::State::kOpen) continue;
    if (silently) {
      wire->frozen_until = kNever;
      wire->node_holds = false;
      wire->up.clear();
    } else if (context_.random.one_in(2)) {
      cut_reply(*wire);
    } else {
      close_from_node(*wire);
    }
  }
}

void Network::heal() noexcept {
  for (const auto& wire : wires_) {
    const bool dead = !wire->node_holds && wire->state == Wire::State::kOpen;
    if (wire->in_use() && !dead && wire->node != kNowhere) wire->frozen_until = 0;
  }
}

}  // namespace kvferry::sim
