#pragma once
// ScriptedCluster: scripted servers that share the slots of a cluster between them.
//
// Every node answers CLUSTER SLOTS, and MOVED for keys of another one; what the map says may differ
// from who serves, as it does for a while in a real cluster. A script sees each command first.
// Threads: every method from any. Limits: those of ScriptedServer.

#include <algorithm>
#include <array>
#include <memory>

#include "fuzz/scripted_server.hpp"
#include "redis/cluster/slot_map.hpp"

namespace kvferry::redis {

class ScriptedCluster {
 public:
  using Peer = ScriptedServer::Peer;
  using Command = ScriptedServer::Command;
  // `node`: which one was asked. True: answered.
  using Script = std::function<bool(std::size_t node, Peer& peer, const Command& command)>;

  // The slots are shared equally.
  explicit ScriptedCluster(std::size_t nodes, Script script = {})
      : script_(std::move(script)), servers_(nodes) {
    for (std::size_t slot = 0; slot < kSlotCount; ++slot) {
      told_[slot] = serving_[slot] = slot * nodes / kSlotCount;
    }
    for (std::size_t node = 0; node < nodes; ++node) start(node);
  }

  [[nodiscard]] ScriptedServer& node(std::size_t node) { return *servers_[node]; }
  [[nodiscard]] std::uint16_t port(std::size_t node) const { return ports_.at(node); }
  void start(std::size_t node) {
    servers_[node] = std::make_unique<ScriptedServer>(
        [this, node](Peer& peer, const Command& command) { return answer(node, peer, command); });
    const std::lock_guard lock(mutex_);
    ports_.resize(std::max(ports_.size(), node + 1));
    ports_[node] = servers_[node]->port();
  }
  void stop(std::size_t node) { servers_[node].reset(); }

  // From now on `node` serves the slot; with `told`, the map says so.
  void move(std::size_t slot, std::size_t node, bool told) {
    const std::lock_guard lock(mutex_);
    serving_[slot] = node;
    if (told) told_[slot] = node;
  }
  void move_all(std::size_t node) {
    const std::lock_guard lock(mutex_);
    serving_.fill(node);
    told_.fill(node);
  }
  // "MOVED 3300 127.0.0.1:7001" and the like.
  [[nodiscard]] std::string redirect(std::string_view kind, std::string_view key,
                                     std::size_t node) {
    const std::lock_guard lock(mutex_);
    return "-" + std::string(kind) + " " + std::to_string(key_slot(key)) +
           " 127.0.0.1:" + std::to_string(ports_[node]) + "\r\n";
  }
  // How often somebody asked for the map.
  [[nodiscard]] int looks() const noexcept { return looks_.load(); }

 private:
  bool answer(std::size_t node, Peer& peer, const Command& command) {
    if (script_ && script_(node, peer, command)) return true;
    if (command[0] == "CLUSTER") {
      looks_.fetch_add(1);
      peer.send(slots());
      return true;
    }
    static constexpr std::array<std::string_view, 5> kOfKeys{"GET", "SET", "DEL", "EXISTS",
                                                             "TOUCH"};
    if (std::ranges::find(kOfKeys, command[0]) == kOfKeys.end()) return false;
    std::size_t owner = 0;
    {
      const std::lock_guard lock(mutex_);
      owner = serving_[key_slot(command[1])];
    }
    if (owner == node) return false;
    peer.send(redirect("MOVED", command[1], owner));
    return true;
  }

  std::string slots() {
    const std::lock_guard lock(mutex_);
    std::string text;
    int ranges = 0;
    for (std::size_t first = 0, next = 0; first < kSlotCount; first = next, ++ranges) {
      while (next < kSlotCount && told_[next] == told_[first]) ++next;
      text += "*3\r\n:" + std::to_string(first) + "\r\n:" + std::to_string(next - 1) +
              "\r\n*2\r\n$9\r\n127.0.0.1\r\n:" + std::to_string(ports_[told_[first]]) + "\r\n";
    }
    return "*" + std::to_string(ranges) + "\r\n" + text;
  }

  const Script script_;
  std::atomic<int> looks_{0};
  std::mutex mutex_;  // guards what follows but the servers
  std::array<std::size_t, kSlotCount> told_{};
  std::array<std::size_t, kSlotCount> serving_{};
  std::vector<std::uint16_t> ports_;
  std::vector<std::unique_ptr<ScriptedServer>> servers_;
};

}  // namespace kvferry::redis
