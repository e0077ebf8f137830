#pragma once
// Troubles: what goes wrong in a schedule: resets, cut replies, silence, nodes that die, sleep,
// load, fill up, fail over, lose or damage values, and slots that move.

#include <vector>

#include "sim/cluster.hpp"
#include "sim/network.hpp"

namespace kvferry::sim {

class Troubles {
 public:
  Troubles(const StreamContext& context, Cluster& cluster, Network& network);

  // Makes what is due. False: nothing is.
  bool step();
  [[nodiscard]] Nanos next() const noexcept;
  // Every trouble has begun.
  [[nodiscard]] bool done() const noexcept { return left_ == 0 && migrations_left_ == 0; }
  // Everything works again, for good.
  void heal();

 private:
  struct Return {
    Nanos at;
    std::size_t node;
    bool promotes;
  };
  void begin();
  void break_wire(std::uint64_t kind);
  void break_node(std::uint64_t kind);
  void lose_node();

  const StreamContext& context_;
  Cluster& cluster_;
  Network& network_;
  std::size_t left_;
  std::size_t migrations_left_;
  Nanos next_at_;
  std::vector<Return> returns_;
};

}  // namespace kvferry::sim
