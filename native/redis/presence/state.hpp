#pragma once
// PresenceState: the machine behind the presence view: which keys there are, as far as the servers
// have told. It takes what connections heard and says what to ask next; it sees neither.
//
// A slot is answered for by the one node that says it serves it, once a snapshot that began after
// that is complete. A key that was announced as changed, or that we wrote, is *changing*: unknown
// until an EXISTS that was asked afterwards is answered. Replies and announcements of a connection
// are in order, so the last word is the right one. What nobody answers for is not recorded: the
// snapshot that will answer for it begins later, and sees it.
// Absent is thus said only of a key that the server had not when it last spoke; never of a key that
// wrote() was called for, unless it went away afterwards.
//
// Threads: any; a short lock. Limits: keys_max hashes in all, changing_max changing keys with their
// names, asked_max unanswered questions of a node. Past the first two, knowledge is thrown away.

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "redis/presence/set.hpp"
#include "redis/presence/slots.hpp"

namespace kvferry::redis {

enum class Presence : std::uint8_t { kUnknown, kAbsent, kProbable };

struct PresenceLimits {
  std::size_t keys_max = 4'000'000;
  std::size_t changing_max = 32'768;
  std::size_t asked_max = 512;
};

struct PresenceStats {
  std::size_t nodes = 0;
  std::size_t nodes_synced = 0;  // that answer for all their slots
  std::size_t keys = 0;          // probably there
  std::size_t changing = 0;
  std::size_t memory_bytes = 0;
  std::uint64_t announced = 0;  // changes that servers told of
  std::uint64_t asked = 0;
  std::uint64_t snapshots = 0;  // that were completed
  std::uint64_t forgotten = 0;  // times that a node's keys became unknown
};

class PresenceState {
 public:
  using NodeId = std::uint16_t;
  using Seed = std::array<std::uint64_t, 2>;
  static constexpr std::size_t kKeyBytesMax = 512;  // no longer key can be asked for

  // `clustered`: slots count; otherwise every node serves everything. `seed`: of the hashes, random
  // so that nobody can choose keys that share one.
  PresenceState(std::string prefix, bool clustered, const PresenceLimits& limits, const Seed& seed);

  // --- Callers. ---
  void look_up(std::span<const std::string_view> keys, std::span<Presence> answers) const;
  // We stored or deleted the key, and nobody has been told so yet. Whether there is more to ask.
  bool wrote(std::string_view key);
  [[nodiscard]] PresenceStats stats() const;
  [[nodiscard]] const std::string& prefix() const noexcept { return prefix_; }

  // --- Connections, each in the order of what it hears. ---
  NodeId join();
  void leave(NodeId node);
  // The connection ended: nothing is known of its node.
  void lost(NodeId node);
  // The slots that the node serves, by its own word.
  void serves(NodeId node, const SlotSet& slots);

  // Whether it serves slots that no snapshot covers.
  [[nodiscard]] bool wants_snapshot(NodeId node) const;
  // Requires: announcements are on; SCAN is sent after this. One at a time.
  void begin_snapshot(NodeId node);
  void found(NodeId node, std::string_view key);
  // Requires: in a cluster, serves() of what the node said after its last key was found.
  void end_snapshot(NodeId node);

  void changed(NodeId node, std::string_view key);
  // Everything may have changed.
  void flushed(NodeId node);

  // The key to send an EXISTS for, if any; answers come in the same order.
  std::optional<std::string> next_question(NodeId node);
  void answered(NodeId node, bool exists);
  // The node answered that another one has the key's slot, or will.
  void redirected(NodeId node);
  // Whether its last snapshot found too many keys.
  [[nodiscard]] bool overflowed(NodeId node) const;

 private:
  static constexpr NodeId kNobody = 0xffff;
  enum class Step : std::uint8_t { kWaiting, kQueued, kAsked, kAskedTooEarly };
  struct Change {
    std::string key;
    std::uint64_t ticket = 0;  // of the question whose answer counts
    std::uint16_t slot = 0;
    NodeId node = kNobody;  // to be asked
    Step step = Step::kWaiting;
  };
  struct Question {
    std::uint64_t hash;
    std::uint64_t ticket;
  };
  struct Node {
    SlotSet served;
    SlotSet trusted;   // part of `served`: it answers for these
    SlotSet scanning;  // part of `served`: it will, when the present snapshot is complete
    PresenceSet keys;
    std::deque<std::uint64_t> queue;  // hashes of keys to ask for; some no longer
    std::deque<Question> asked;
    bool overflowed = false;
  };

  [[nodiscard]] bool ours(std::string_view key) const noexcept {
    return key.size() <= kKeyBytesMax && key.starts_with(prefix_);
  }
  [[nodiscard]] std::uint64_t hash(std::string_view key) const noexcept;
  [[nodiscard]] std::uint16_t slot(std::string_view key) const noexcept {
    return clustered_ ? key_slot(key) : std::uint16_t{0};
  }
  bool note(std::uint64_t hash, std::string_view key);
  void place(std::uint64_t hash, Change& change);
  void hold(Node& node, std::uint64_t hash);
  void drop(Node& node, std::uint64_t hash);
  void forget(Node& node);
  // After any change of what nodes serve or answer for, forget() among them.
  void settle_slots();

  const std::string prefix_;
  const bool clustered_;
  const PresenceLimits limits_;
  const Seed seed_;

  mutable std::mutex mutex_;                  // guards what follows
  std::vector<std::unique_ptr<Node>> nodes_;  // null: left
  std::vector<NodeId> server_of_;             // slot to the only node that serves it
  SlotSet covered_;                           // slots that some node answers for, or soon will
  std::unordered_map<std::uint64_t, Change> changing_;
  std::size_t keys_ = 0;  // in all nodes
  std::uint64_t next_ticket_ = 1;
  PresenceStats counters_;
};

}  // namespace kvferry::redis
