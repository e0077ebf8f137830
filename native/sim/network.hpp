#pragma once
// Network: all wires of a schedule. It opens them for connections, moves bytes when the scheduler
// says so, and breaks them when trouble says so.
//
// Names are looked up here too: answers arrive late, sometimes after the dial has given up.

#include <functional>
#include <memory>
#include <vector>

#include "net/transport.hpp"
#include "sim/wire.hpp"

namespace kvferry::sim {

class Network final : public net::Transport {
 public:
  // `accepts`: whether a node takes connections now, or (nullopt) does not even answer.
  enum class Welcome : std::uint8_t { kAccepts, kRefuses, kSilent };

  Network(const StreamContext& context, std::function<Welcome(std::size_t node)> welcome);

  Result<std::unique_ptr<net::Stream>> open(const net::Address& address,
                                            std::string_view host) override;

  // One thing happens on one wire. False: nothing can happen anywhere now.
  bool step();
  // When the next frozen wire thaws.
  [[nodiscard]] Nanos next() const noexcept;

  [[nodiscard]] std::size_t size() const noexcept { return wires_.size(); }
  [[nodiscard]] Wire& wire(std::size_t index) noexcept { return *wires_[index]; }
  // A wire that is connected at both ends; null if there is none.
  Wire* pick_open() noexcept;

  // Trouble.
  static void reset(Wire& wire) noexcept;            // at once; what travels is lost
  static void close_from_node(Wire& wire) noexcept;  // what was sent still arrives
  void cut_reply(Wire& wire) noexcept;               // in the middle of what travels, then reset
  void drop_node(std::size_t node, bool silently) noexcept;
  // Every wire moves again, but for those that are dead for good.
  void heal() noexcept;

 private:
  bool step(Wire& wire, std::size_t index);
  [[nodiscard]] std::size_t portion(std::size_t bytes) noexcept;

  const StreamContext& context_;
  const std::function<Welcome(std::size_t)> welcome_;
  std::vector<std::unique_ptr<Wire>> wires_;
};

}  // namespace kvferry::sim
