#pragma once
// CLUSTER SLOTS, as every version since 3.0 answers it, becomes a SlotMap.
//
// An entry is [first, last, primary, replica...], a node [endpoint, port, id, metadata]; the id
// came with 4.0 and the metadata (a map in RESP3, a flat list in RESP2) with 7.0. An endpoint is
// an address or a name; null or empty means "the host that you asked"; "?" means that the server
// was told to give names and knows none for that node. Such a node is reached by the address in its
// metadata, else it is left out, and with a primary its slots, which then nobody serves.
//
// Failure: an error reply is kServer; any other shape is kProtocol and says what is wrong, because
// half a map is worse than the old one. Values from the server appear in it only where they passed
// as a host or a number.
// Source: the CLUSTER SLOTS page of the Redis and Valkey command references.

#include "base/result.hpp"
#include "net/address.hpp"
#include "redis/cluster/slot_map.hpp"
#include "resp/value.hpp"

namespace kvferry::redis {

// `asked`: the node that sent the reply. A reply without entries is a map that covers nothing.
Result<SlotMap> parse_cluster_slots(const resp::Value& reply, const net::Endpoint& asked);

}  // namespace kvferry::redis
