#pragma once
// What Sentinels say, and what a server says of its own role.
//
// A Sentinel's word is a hint: the node that it names is asked for its ROLE before it is trusted.
// Rows of nodes are maps in RESP3 and flat lists in RESP2; both are read.
//
// Failure: an error reply is kServer, a master that the Sentinel does not know kResolve, any other
// shape kProtocol, more nodes than kSentinelNodesMax kCapacity. A row without a usable address is
// left out, because it hides no other.
// Source: "Sentinel API", "Pub/Sub messages" and the ROLE page of the Redis command reference.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "net/address.hpp"
#include "resp/value.hpp"

namespace kvferry::redis {

inline constexpr std::size_t kSentinelNodesMax = 128;

// SENTINEL GET-MASTER-ADDR-BY-NAME name.
Result<net::Endpoint> parse_master_address(const resp::Value& reply);

// SENTINEL SENTINELS name: the other Sentinels, those that are down included: they may be back.
Result<std::vector<net::Endpoint>> parse_sentinels(const resp::Value& reply);

// SENTINEL REPLICAS name: those that may be read, that is, neither down nor cut off from the
// master.
Result<std::vector<net::Endpoint>> parse_replicas(const resp::Value& reply);

enum class RoleKind : std::uint8_t { kMaster, kReplica, kSentinel };

struct Role {
  RoleKind kind = RoleKind::kMaster;
  net::Endpoint master;     // of a replica; without a host when it is none that we could dial
  bool is_linked = false;   // of a replica: it is in step with its master ("connected")
  std::int64_t offset = 0;  // of a master or replica: the replication offset, -1 before the first
};

// ROLE.
Result<Role> parse_role(const resp::Value& reply);

}  // namespace kvferry::redis
