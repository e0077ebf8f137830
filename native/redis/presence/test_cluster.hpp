#pragma once
// ModelCluster: servers for tests of the presence view, without sockets: keys, slots on their way,
// announcements at the end of a turn, and replies that are delivered when the test says so.
//
// Every change has a tick, and the history of each key is kept, so that a test can ask when a key
// was absent.

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "redis/cluster/slot_map.hpp"
#include "resp/value.hpp"

namespace kvferry::redis {

inline resp::Value model_value(resp::Type type, std::string text = {}) {
  return {.type = type, .integer = 0, .text = std::move(text), .items = {}};
}

struct ModelNode {
  struct Reply {
    resp::Value value;
    int tick;        // of the oldest thing that it tells
    bool is_census;  // of CLUSTER NODES
  };
  std::set<std::string> keys;
  std::set<std::string> hidden;  // of slots that are being taken over at once
  bool tracking = false;
  int tracking_since = 0;
  std::deque<std::vector<std::string>> in;
  std::deque<Reply> out;
  std::vector<std::string> announced;  // by this turn, which made its first change then
  int announced_since = 0;
};

class ModelCluster {
 public:
  ModelCluster(std::size_t node_count, const std::vector<std::string>& keys) : nodes(node_count) {
    for (const std::string& key : keys) {
      owner[key_slot(key)] = key_slot(key) % node_count;
      history[key] = {{0, false}};
    }
  }

  // --- What clients do. ---
  void store(const std::string& key) {
    const std::uint16_t slot = key_slot(key);
    const bool asked = migrating.contains(slot) && !nodes[owner[slot]].keys.contains(key);
    put(asked ? migrating[slot] : owner[slot], key);
    // A slot that is taken over at once is copied as it changes, too.
    if (taking_over.contains(slot)) hide(taking_over[slot], key);
    note(key);
  }
  void remove(const std::string& key) {
    for (std::size_t node = 0; node < nodes.size(); ++node) take(node, key);
    note(key);
  }
  void flush(std::size_t node) {
    for (const std::string& key : std::exchange(nodes[node].keys, {})) {
      for (std::size_t other = 0; other < nodes.size(); ++other) {
        if (nodes[other].hidden.contains(key)) take(other, key);
      }
      note(key);
    }
    if (nodes[node].tracking) push(node, model_value(resp::Type::kNull), tick);
  }
  [[nodiscard]] bool exists(const std::string& key) const {
    const std::uint16_t slot = key_slot(key);
    if (nodes[owner.at(slot)].keys.contains(key)) return true;
    return migrating.contains(slot) && nodes[migrating.at(slot)].keys.contains(key);
  }

  // --- A slot moves, key by key. ---
  void begin_migration(std::uint16_t slot, std::size_t to) {
    if (owner[slot] != to && !taking_over.contains(slot)) migrating.try_emplace(slot, to);
  }
  void migrate(const std::string& key) {
    const std::uint16_t slot = key_slot(key);
    if (!migrating.contains(slot) || !nodes[owner[slot]].keys.contains(key)) return;
    put(migrating[slot], key);
    take(owner[slot], key);
  }
  void end_migration(std::uint16_t slot) {
    if (!migrating.contains(slot)) return;
    for (const auto& [key, states] : history) {
      if (key_slot(key) == slot) migrate(key);
    }
    owner[slot] = migrating[slot];
    migrating.erase(slot);
  }
  // --- Or at once, after its keys were copied unseen. ---
  void begin_takeover(std::uint16_t slot, std::size_t to) {
    if (owner[slot] == to || migrating.contains(slot)) return;
    if (!taking_over.try_emplace(slot, to).second) return;
    for (const std::string& key : std::set(nodes[owner[slot]].keys)) {
      if (key_slot(key) == slot) hide(to, key);
    }
  }
  void end_takeover(std::uint16_t slot) {
    if (!taking_over.contains(slot)) return;
    const std::size_t from = std::exchange(owner[slot], taking_over[slot]);
    taking_over.erase(slot);
    for (const auto& [key, states] : history) {
      if (key_slot(key) != slot) continue;
      if (nodes[owner[slot]].hidden.erase(key) > 0) nodes[owner[slot]].keys.insert(key);
      take(from, key);
    }
  }

  // --- The connection of a node. ---
  void reconnect(std::size_t node) {
    nodes[node].tracking = false;
    nodes[node].in.clear();
    nodes[node].out.clear();
  }
  void receive(std::size_t node, std::string_view bytes) {
    resp::ValueReader reader;
    reader.feed(as_bytes(bytes));
    for (resp::Value value; reader.next(value) == resp::ValueReader::State::kValue;) {
      std::vector<std::string> words;
      for (const auto& item : value.items) words.push_back(item.text);
      nodes[node].in.push_back(std::move(words));
    }
  }
  // Executes a command, then ends the turn of the event loop: announcements come after the reply.
  void turn(std::size_t node) {
    ModelNode& server = nodes[node];
    if (!server.in.empty()) {
      const auto words = std::move(server.in.front());
      server.in.pop_front();
      server.out.push_back({execute(node, words), tick, words[1] == "NODES"});
    }
    if (server.announced.empty()) return;
    resp::Value keys = model_value(resp::Type::kArray);
    for (auto& key : std::exchange(server.announced, {})) {
      keys.items.push_back(model_value(resp::Type::kBulk, key));
    }
    if (server.tracking) push(node, std::move(keys), server.announced_since);
  }

  std::vector<ModelNode> nodes;
  std::map<std::uint16_t, std::size_t> owner;
  std::map<std::uint16_t, std::size_t> migrating;
  std::map<std::uint16_t, std::size_t> taking_over;
  std::map<std::string, std::vector<std::pair<int, bool>>>
      history;  // since when it is there, or not
  int tick = 0;

 private:
  void put(std::size_t node, const std::string& key) {
    nodes[node].keys.insert(key);
    announce(node, key);
  }
  void hide(std::size_t node, const std::string& key) {
    nodes[node].hidden.insert(key);
    announce(node, key);
  }
  void take(std::size_t node, const std::string& key) {
    const auto there = nodes[node].keys.erase(key) + nodes[node].hidden.erase(key);
    if (there > 0) announce(node, key);
  }
  void announce(std::size_t node, const std::string& key) {
    if (nodes[node].announced.empty()) nodes[node].announced_since = tick;
    nodes[node].announced.push_back(key);
  }
  void note(const std::string& key) {
    auto& states = history[key];
    if (states.back().second != exists(key)) states.emplace_back(tick, exists(key));
  }
  void push(std::size_t node, resp::Value what, int since) {
    resp::Value message = model_value(resp::Type::kPush);
    message.items.push_back(model_value(resp::Type::kBulk, "invalidate"));
    message.items.push_back(std::move(what));
    nodes[node].out.push_back({std::move(message), since, false});
  }
  resp::Value execute(std::size_t node, const std::vector<std::string>& words) {
    ModelNode& server = nodes[node];
    if (words[0] == "CLIENT") {
      server.tracking = true;
      server.tracking_since = tick;
      server.announced.clear();
      return model_value(resp::Type::kSimple, "OK");
    }
    if (words[1] == "INFO") return model_value(resp::Type::kVerbatim, "cluster_state:ok\r\n");
    if (words[1] == "NODES") {
      std::string line = "id host:1@2 myself,master - 0 0 1 connected";
      for (const auto& [slot, owned_by] : owner) {
        if (owned_by != node) continue;
        line += " " + std::to_string(slot);
        if (migrating.contains(slot)) line += " [" + std::to_string(slot) + "->-id]";
      }
      return model_value(resp::Type::kVerbatim, line + "\n");
    }
    if (words[0] == "SCAN") return scan(server, words[1]);
    const std::uint16_t slot = key_slot(words[1]);
    if (owner[slot] != node) return model_value(resp::Type::kError, "MOVED 1 host:1");
    const bool exists = server.keys.contains(words[1]);
    if (!exists && migrating.contains(slot)) return model_value(resp::Type::kError, "ASK 1 h:1");
    resp::Value reply = model_value(resp::Type::kInteger);
    reply.integer = exists ? 1 : 0;
    return reply;
  }
  // Two keys at a time, in their order; the cursor is a number, as a server's.
  resp::Value scan(const ModelNode& server, const std::string& cursor) {
    const auto at = static_cast<std::size_t>(std::stoul(cursor));
    resp::Value keys = model_value(resp::Type::kArray);
    std::size_t index = 0;
    for (const auto& [key, states] : history) {
      const bool due = index >= at && index < at + 2;
      if (due && server.keys.contains(key)) {
        keys.items.push_back(model_value(resp::Type::kBulk, key));
      }
      ++index;
    }
    const std::string next = at + 2 < history.size() ? std::to_string(at + 2) : "0";
    resp::Value reply = model_value(resp::Type::kArray);
    reply.items.push_back(model_value(resp::Type::kBulk, next));
    reply.items.push_back(std::move(keys));
    return reply;
  }
};

}  // namespace kvferry::redis
