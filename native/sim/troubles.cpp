#include "sim/troubles.hpp"

#include <algorithm>

namespace kvferry::sim {

Troubles::Troubles(const StreamContext& context, Cluster& cluster, Network& network)
    : context_(context),
      cluster_(cluster),
      network_(network),
      left_(context.plan.troubles),
      migrations_left_(context.plan.migrations),
      next_at_(context.journal.now() + context.random.between(0, 3000) * kMicro) {}

Nanos Troubles::next() const noexcept {
  Nanos earliest = done() ? kNever : next_at_;
  for (const Return& each : returns_) earliest = std::min(earliest, each.at);
  return earliest;
}

bool Troubles::step() {
  const Nanos now = context_.journal.now();
  const auto due =
      std::ranges::find_if(returns_, [&](const Return& each) { return each.at <= now; });
  if (due != returns_.end()) {
    const Return back = *due;
    returns_.erase(due);
    if (back.promotes) {
      cluster_.promote(back.node);
    } else {
      cluster_.restart(back.node, context_.random.one_in(2));
    }
    return true;
  }
  if (done() || now < next_at_) return false;
  Random& random = context_.random;
  next_at_ = now + (random.one_in(4) ? random.between(0, 2000) * kMilli
                                     : random.between(0, 2000) * kMicro);
  if (migrations_left_ > 0 && (left_ == 0 || random.one_in(2))) {
    --migrations_left_;
    cluster_.start_migration();
  } else {
    --left_;
    begin();
  }
  return true;
}

void Troubles::begin() {
  const std::uint64_t kind = context_.random.below(14);
  if (kind < 5) return break_wire(kind);
  if (kind < 12) return break_node(kind);
  lose_node();
}

void Troubles::break_wire(std::uint64_t kind) {
  Wire* wire = network_.pick_open();
  if (wire == nullptr) return;
  const auto node = static_cast<std::int64_t>(wire->node);
  switch (kind) {
    case 0:
      context_.journal.trouble("reset", node);
      return Network::reset(*wire);
    case 1:
      context_.journal.trouble("closed", node);
      return Network::close_from_node(*wire);
    case 2:
      context_.journal.trouble("cut", node);
      return network_.cut_reply(*wire);
    default:
      const Nanos length = context_.random.one_in(2) ? 8 * kSecond : 20 * kMilli;
      wire->frozen_until = context_.journal.now() + context_.random.between(1, length);
      context_.journal.trouble("frozen", node);
  }
}

void Troubles::break_node(std::uint64_t kind) {
  Node* node = cluster_.pick_up();
  if (node == nullptr) return;
  Random& random = context_.random;
  const Nanos now = context_.journal.now();
  const Nanos until = now + (random.one_in(4) ? random.between(1, 4000) * kMilli
                                              : random.between(1, 5000) * kMicro);
  switch (kind) {
    case 5:
      context_.journal.trouble("stopped");
      node->frozen_until = until;
      return;
    case 6:
      context_.journal.note("loading");
      node->loading_until = until;
      return;
    case 7:
      context_.journal.note("full");
      node->full_until = until;
      return;
    case 8:
      if (context_.plan.topology != redis::Topology::kCluster) return;
      context_.journal.note("undecided");
      node->undecided_until = until;
      return;
    case 9:
      context_.journal.note("flushed");
      return node->forget_all();
    case 10:
      context_.journal.note("damaged");
      for (std::size_t entry = 0; entry < kEntries; ++entry) {
        if (is_framed(entry / 2) && random.one_in(2)) node->table[entry].damaged = true;
      }
      return;
    default:
      // A hand-over in good order.
      for (std::size_t index = 0; index < cluster_.size(); ++index) {
        if (&cluster_.node(index) == node) cluster_.promote(index);
      }
  }
}

void Troubles::lose_node() {
  const std::size_t node = context_.random.below(cluster_.size());
  if (cluster_.node(node).health != Node::Health::kUp) return;
  const bool silently = context_.random.one_in(3);
  context_.journal.trouble(silently ? "vanished" : "killed", static_cast<std::int64_t>(node));
  cluster_.kill(network_, node, silently);
  const Nanos away = context_.random.one_in(2) ? context_.random.between(1, 3000) * kMilli
                                               : context_.random.between(1, 3000) * kMicro;
  const Nanos now = context_.journal.now();
  returns_.push_back({now + away, node, false});
  if (context_.random.one_in(2)) returns_.push_back({now + away / 2, node, true});
}

void Troubles::heal() {
  returns_.clear();
  left_ = migrations_left_ = 0;
  cluster_.heal();
  network_.heal();
}

}  // namespace kvferry::sim
