#pragma once
// Node: a model of one Redis or Valkey server: a table of values, its part of a cluster as far as
// it knows, and the moods that servers have.
//
// Values are kept as what they say they are (stamp.hpp) and made again for each GET. The bytes of
// every SET are compared with what the caller's buffer held, so a torn value is seen here.
// Source: Redis cluster specification; the commands' reference pages.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codec/frame.hpp"
#include "sim/keys.hpp"
#include "sim/ledger.hpp"
#include "sim/wire.hpp"

namespace kvferry::sim {

inline constexpr int kNobody = -1;

struct Entry {
  bool present = false;
  bool damaged = false;
  std::uint16_t version = 0;
  std::size_t size = 0;    // of the payload
  std::size_t offset = 0;  // of the payload in the whole value
  Nanos expires_at = kNever;
  std::array<std::byte, codec::kFrameSizeBytes> frame{};
};

// What nodes of a schedule share.
struct NodeContext {
  Journal& journal;
  Random& random;
  Ledger& ledger;
  const Plan& plan;
  Plant plant;
};

class Node {
 public:
  enum class Health : std::uint8_t { kUp, kDown, kSilent };

  Node(const NodeContext& context, int id) : context_(context), id_(id) {}

  // Reads and answers one command that has arrived. False: there is none.
  bool serve(Wire& wire);

  Health health = Health::kUp;
  Nanos loading_until = 0;
  Nanos full_until = 0;                   // out of memory
  Nanos undecided_until = 0;              // CLUSTERDOWN
  Nanos frozen_until = 0;                 // SIGSTOP
  int primary = kNobody;                  // of a replica
  std::array<int, kRegions> owner{};      // as this node believes
  std::array<int, kRegions> migrating{};  // to whom
  std::array<int, kRegions> importing{};  // from whom
  std::array<Entry, kEntries> table;
  std::vector<std::uint8_t> log;  // entries that changed, for replicas
  std::size_t replicated = 0;     // of the primary's log

  [[nodiscard]] bool is_replica() const noexcept { return primary != kNobody; }
  [[nodiscard]] Entry* find(std::size_t entry) noexcept;
  void forget_all() noexcept;

 private:
  using Words = std::array<std::string_view, 8>;

  // The words of the first command in `input` and its length, or 0 with what is `needed`.
  std::size_t parse(std::string_view input, Words& words, std::size_t& count,
                    std::size_t& needed) const noexcept;
  [[nodiscard]] bool knows(const Session& session) const noexcept {
    return session.authenticated || !context_.plan.credentials;
  }
  void answer(Wire& wire, const Words& words, std::size_t count);
  void greet(Wire& wire, const Words& words, std::size_t count);
  void execute(Wire& wire, Verb verb, const Words& words, std::size_t count);
  // Writes why not, and returns false.
  bool permits(Wire& wire, Verb verb, std::size_t entry, bool asking);
  bool owns(Wire& wire, Verb verb, std::size_t entry, bool asking);
  void get(Wire& wire, std::size_t entry);
  void set(std::size_t entry, const Words& words, std::size_t count);
  void redirect(Wire& wire, const char* word, std::size_t entry, int to);
  void busy(Wire& wire, Verb verb, std::size_t entry, Deed deed, std::string_view text);
  void reply(Wire& wire, std::string_view text);

  const NodeContext& context_;
  const int id_;
  std::string scratch_;
};

}  // namespace kvferry::sim
