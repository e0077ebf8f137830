#include "redis/cluster/topology_cluster.hpp"

#include <optional>
#include <utility>

#include "redis/cluster/topology_endpoint.hpp"
#include "redis/server_error.hpp"

namespace kvferry::redis {
namespace {

using resp::Value;

constexpr std::size_t kZoneBytesMax = 100;

Error error(Errc code, std::string_view what) {
  return {code, "CLUSTER SLOTS: " + std::string(what)};
}
Error malformed(std::string_view what) { return error(Errc::kProtocol, what); }

// What a node's metadata says under `key`; nullptr when it does not.
const Value* metadata(const Value& node, std::string_view key) noexcept {
  const Value* value = node.items.size() > 3 ? node.items[3].find(key) : nullptr;
  return value != nullptr && value->is_text() ? value : nullptr;
}

// The host to dial; empty when the server knows none.
std::string_view host_of(const Value& node, const net::Endpoint& asked) noexcept {
  const Value* host = &node.items[0];
  if (host->text == "?") host = metadata(node, "ip");
  if (host == nullptr) return "";
  return host->text.empty() ? asked.host : host->text;  // a node may not know its own address
}

// nullopt in the result: nobody knows how to reach the node.
Result<std::optional<Node>> parse_node(const Value& value, const net::Endpoint& asked) {
  if (!value.is_list() || value.items.size() < 2) return malformed("a node is not [host, port]");
  const Value& host_value = value.items[0];
  if (!host_value.is_null() && !host_value.is_text()) return malformed("a host is not a text");
  const std::optional<std::int64_t> port = value.items[1].as_integer();
  if (!port) return malformed("a port is not a number");
  const std::string_view host = host_of(value, asked);
  if (host.empty()) return std::optional<Node>{};
  if (!is_host(host)) return malformed("a host has characters that no host name has");
  std::optional<net::Endpoint> endpoint = make_endpoint(host, *port);
  if (!endpoint) {
    return malformed("port " + std::to_string(*port) + " of " + std::string(host) +
                     " is not 1 to 65535");
  }
  Node node{.endpoint = *std::move(endpoint), .zone = {}};
  if (const Value* zone = metadata(value, "availability-zone")) {
    node.zone = printable(std::string_view(zone->text).substr(0, kZoneBytesMax));
  }
  return std::optional(std::move(node));
}

// nullopt in the result: the primary is out of reach, so nobody serves the range.
Result<std::optional<SlotRange>> parse_range(const Value& value, const net::Endpoint& asked) {
  if (!value.is_list() || value.items.size() < 3) {
    return malformed("an entry is not [first, last, primary...]");
  }
  const auto first = value.items[0].as_integer();
  const auto last = value.items[1].as_integer();
  if (!first || !last) return malformed("a slot is not a number");
  SlotRange range{.first = *first, .last = *last, .primary = {}, .replicas = {}};
  bool is_reachable = true;
  for (std::size_t index = 2; index < value.items.size(); ++index) {
    Result<std::optional<Node>> node = parse_node(value.items[index], asked);
    if (!node) return node.error();
    if (index == 2) {
      is_reachable = node->has_value();
      if (is_reachable) range.primary = std::move(**node);
    } else if (node->has_value()) {
      range.replicas.push_back(std::move(**node));
    }
  }
  return is_reachable ? std::optional(std::move(range)) : std::nullopt;
}

}  // namespace

Result<SlotMap> parse_cluster_slots(const Value& reply, const net::Endpoint& asked) {
  if (reply.is_error()) return error(Errc::kServer, printable(reply.text));
  if (!reply.is_list() || reply.is_push()) return malformed("the reply is not a list");
  if (reply.items.size() > kSlotCount) return malformed("more entries than there are slots");
  std::vector<SlotRange> ranges;
  for (const Value& entry : reply.items) {
    Result<std::optional<SlotRange>> range = parse_range(entry, asked);
    if (!range) return range.error();
    if (range->has_value()) ranges.push_back(std::move(**range));
  }
  return SlotMap::build(std::move(ranges));
}

}  // namespace kvferry::redis
