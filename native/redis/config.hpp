#pragma once
// Config: everything a client can be told. Of what is a setting (src/kvferry/config/client.py) the
// product gives every value; other limits keep what they begin with here.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/clock.hpp"
#include "net/address.hpp"

namespace kvferry::redis {

// What a connection says first. Secrets: the passwords are never in a message.
struct Greeting {
  std::string username;
  std::string password;
  int database = 0;
  int protocol = 3;  // 3: RESP3 with fall back to RESP2; 2: RESP2
  std::string client_name = "kvferry";
  bool read_only = false;  // READONLY: reads from a replica of a cluster
  bool sentinel = false;   // to a Sentinel, which knows no databases
};

enum class Topology : std::uint8_t { kStandalone, kCluster, kSentinel };
enum class ReadFrom : std::uint8_t { kPrimary, kReplica, kZone };
// Of a standalone server that was named by a loopback address: see SameHost. kUnix insists.
enum class SameHostWay : std::uint8_t { kAuto, kTcp, kUnix };

struct Config : Greeting {
  net::Endpoint endpoint;
  SameHostWay same_host = SameHostWay::kAuto;  // TLS: kTcp
  Topology topology = Topology::kStandalone;
  std::vector<net::Endpoint> nodes;  // more seeds of the cluster, or more Sentinels
  std::string sentinel_master;       // the name that Sentinels know the master by
  std::string sentinel_username;
  std::string sentinel_password;
  ReadFrom read_from = ReadFrom::kPrimary;
  std::string availability_zone;  // kZone: prefer replicas there
  Nanos topology_refresh = 60 * kSecond;
  std::size_t nodes_max = 128;  // each costs connections + 1 sockets

  std::optional<std::string> presence_prefix;  // keep a PresenceView of these keys
  std::size_t presence_keys_max = 4'000'000;

  // Per node.
  std::size_t connections = 8;  // data connections; one more carries small commands
  std::size_t workers = 4;      // I/O threads that share them; one more has the small lane

  // A batch may take timeout + bytes / floor_rate_bytes_per_s unless the call says otherwise.
  Nanos timeout = 5 * kSecond;
  double floor_rate_bytes_per_s = 50e6;
  Nanos connect_timeout = 2 * kSecond;  // name look-up, TCP, TLS and greeting together
  Nanos stall_timeout = 2 * kSecond;    // no byte moved although some are owed
  Nanos ping_interval = 5 * kSecond;    // a quiet connection is asked whether it lives
  Nanos reconnect_min = 50 * kMilli;    // full jitter below a ceiling that doubles
  Nanos reconnect_max = 1 * kSecond;
  int attempts_max = 3;  // tries of one command, over connections that break

  std::size_t window_bytes = 0;              // replies in flight per connection; 0: adapts
  std::size_t value_bytes_max = 512 * kMiB;  // the server's proto-max-bulk-len
  std::size_t drain_bytes_max = 8 * kMiB;    // unwanted payload that is read rather than cut
  std::size_t queued_commands_max = 4'000'000;
};

}  // namespace kvferry::redis
