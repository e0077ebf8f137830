#include "redis/cluster/topology_sentinel.hpp"

#include <array>
#include <utility>

#include "redis/cluster/topology_endpoint.hpp"
#include "redis/server_error.hpp"

namespace kvferry::redis {
namespace {

using resp::Value;

// Why `reply` is no list with something in it, or the error that it is.
Error not_a_list(const Value& reply, std::string_view command) {
  const std::string prefix = std::string(command) + ": ";
  if (reply.is_error()) return {Errc::kServer, prefix + printable(reply.text)};
  return {Errc::kProtocol, prefix + "the reply is not what it should be"};
}

bool is_reply_list(const Value& reply) noexcept { return reply.is_list() && !reply.is_push(); }

std::string_view field(const Value& row, std::string_view key) noexcept {
  const Value* value = row.find(key);
  return value != nullptr && value->is_text() ? std::string_view(value->text) : "";
}

bool has_flag(std::string_view flags, std::string_view flag) noexcept {
  while (!flags.empty()) {
    const std::size_t comma = flags.find(',');
    if (flags.substr(0, comma) == flag) return true;
    flags.remove_prefix(comma == std::string_view::npos ? flags.size() : comma + 1);
  }
  return false;
}

bool is_readable_replica(const Value& row) noexcept {
  const std::string_view flags = field(row, "flags");
  return !has_flag(flags, "s_down") && !has_flag(flags, "o_down") &&
         !has_flag(flags, "disconnected") && field(row, "master-link-status") != "err";
}

template <typename Wanted>
Result<std::vector<net::Endpoint>> endpoints(const Value& reply, std::string_view command,
                                             Wanted wanted) {
  if (!is_reply_list(reply)) return not_a_list(reply, command);
  if (reply.items.size() > kSentinelNodesMax) {
    return Error{Errc::kCapacity, std::string(command) + ": more than " +
                                      std::to_string(kSentinelNodesMax) + " nodes"};
  }
  std::vector<net::Endpoint> found;
  for (const Value& row : reply.items) {
    const auto port = parse_number<std::int64_t>(field(row, "port"));
    if (!port || !wanted(row)) continue;
    if (auto endpoint = make_endpoint(field(row, "ip"), *port)) {
      found.push_back(*std::move(endpoint));
    }
  }
  return found;
}

Result<Role> parse_replica_role(const Value& reply) {
  const auto& items = reply.items;
  if (items.size() < 5) return not_a_list(reply, "ROLE");
  const auto port = items[2].as_integer();
  const auto offset = items[4].as_integer();
  if (!items[1].is_text() || !port || !items[3].is_text() || !offset) {
    return not_a_list(reply, "ROLE");
  }
  return Role{.kind = RoleKind::kReplica,
              .master = make_endpoint(items[1].text, *port).value_or(net::Endpoint{}),
              .is_linked = items[3].text == "connected",
              .offset = *offset};
}

}  // namespace

Result<net::Endpoint> parse_master_address(const Value& reply) {
  constexpr std::string_view kCommand = "SENTINEL GET-MASTER-ADDR-BY-NAME";
  if (reply.is_null()) return Error{Errc::kResolve, "the Sentinel knows no master of that name"};
  if (!is_reply_list(reply) || reply.items.size() != 2) return not_a_list(reply, kCommand);
  const Value& host = reply.items[0];
  const auto port = reply.items[1].as_integer();
  if (!host.is_text() || !port) return not_a_list(reply, kCommand);
  auto endpoint = make_endpoint(host.text, *port);
  if (!endpoint) return Error{Errc::kProtocol, std::string(kCommand) + ": no host, or no port"};
  return *std::move(endpoint);
}

Result<std::vector<net::Endpoint>> parse_sentinels(const Value& reply) {
  return endpoints(reply, "SENTINEL SENTINELS", [](const Value&) { return true; });
}

Result<std::vector<net::Endpoint>> parse_replicas(const Value& reply) {
  return endpoints(reply, "SENTINEL REPLICAS", is_readable_replica);
}

Result<Role> parse_role(const Value& reply) {
  if (!is_reply_list(reply) || reply.items.empty() || !reply.items[0].is_text()) {
    return not_a_list(reply, "ROLE");
  }
  const std::string_view word = reply.items[0].text;
  if (word == "slave" || word == "replica") return parse_replica_role(reply);
  if (word == "sentinel") return Role{.kind = RoleKind::kSentinel, .master = {}};
  if (word != "master" && word != "primary") return not_a_list(reply, "ROLE");
  const auto offset = reply.items.size() > 1 ? reply.items[1].as_integer() : std::nullopt;
  if (!offset) return not_a_list(reply, "ROLE");
  return Role{.kind = RoleKind::kMaster, .master = {}, .offset = *offset};
}

}  // namespace kvferry::redis
