#pragma once
// Context: what all sessions of one node share.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "node/access.hpp"
#include "node/clients.hpp"
#include "node/in_flight.hpp"
#include "node/leases.hpp"
#include "node/request_parser.hpp"
#include "node/values.hpp"

namespace kvferry::node {

// Sums since the start. Relaxed, because nothing is decided by them.
struct Counters {
  std::atomic<std::uint64_t> commands{0}, hits{0}, misses{0}, busy{0};
  std::atomic<std::uint64_t> connections{0}, rejected{0}, slow_closed{0}, silent_closed{0};
  std::atomic<std::uint64_t> failed{0};  // connections that ended by an exception
  // Handshakes that came to nothing; TLS files that were changed to what cannot be used.
  std::atomic<std::uint64_t> tls_refused{0}, tls_files_refused{0};
  std::atomic<std::uint64_t> leases{0}, leases_expired{0};
  std::atomic<std::uint64_t> received_bytes{0}, sent_bytes{0};

  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t count = 1) noexcept {
    counter.fetch_add(count, std::memory_order_relaxed);
  }
};

struct SessionLimits {
  RequestLimits request{};
  std::size_t key_bytes_max = 4 * kKiB;      // keys lie beside the pages
  std::size_t unread_bytes_max = 16 * kMiB;  // of replies, before the next command is looked at
  std::size_t unread_text_bytes_max = 64 * kKiB;  // the same, of what is not in pages
  std::size_t announced_bytes_max = 32 * kMiB;    // of announcements that wait beside replies
  std::size_t held_bytes_max = 64 * kMiB;  // memory of all connections together, beside pages
  std::size_t scanned_bytes_max = kMiB;    // of the answer to SCAN, and the keys at hand
  std::size_t scan_count_max = 16 * kKiB;  // places that one SCAN looks at
  LeaseLimits lease{};
};

// The release whose commands these are: clients read it to learn what they may use.
inline constexpr std::string_view kCommandsOf = "7.2.4";

// What INFO and CONFIG tell of the node.
struct NodeFacts {
  std::string version{};
  std::string policy{};
  std::string run_id{};     // of this start
  std::string bind{};       // where it listens: hosts, with spaces between them
  std::string unix_path{};  // where it listens besides; empty: nowhere
  std::uint16_t port = 0;
  int threads = 1;
  UnixMs since = 0;
};

struct Context {
  Values& values;
  const Access& access;
  Clients& clients;
  InFlight& in_flight;
  Counters& counters;
  const Agent& agent;
  SessionLimits limits;
  NodeFacts facts;
};

}  // namespace kvferry::node
