// What a cluster or a Sentinel may tell us: however the bytes are cut, the same values come out of
// them, within the limits, and a map that is accepted means something.
//
// Input: what a server sends. Every value is taken as the answer of CLUSTER SLOTS, ROLE and the
// SENTINEL commands, every text also as a redirect and a message.
#include <algorithm>
#include <string>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "redis/cluster/redirect.hpp"
#include "redis/cluster/topology_cluster.hpp"
#include "redis/cluster/topology_endpoint.hpp"
#include "redis/cluster/topology_sentinel.hpp"

namespace {

using kvferry::as_bytes;
using kvferry::Error;
using kvferry::Result;
using kvferry::fuzz::require;
using kvferry::net::Endpoint;
using kvferry::resp::Type;
using kvferry::resp::Value;
using kvferry::resp::ValueReader;
using namespace kvferry::redis;

// Small, so that short inputs reach them.
constexpr ValueReader::Limits kLimits{.text_bytes_max = 512, .values_max = 128};
const Endpoint kAsked{.host = "seed", .port = 7000, .unix_path = {}};

struct Size {
  std::size_t values = 0;
  std::size_t text = 0;
};

void measure(const Value& value, std::size_t depth, Size& size) {
  require(depth <= kvferry::resp::Parser::kDepthMax, "a value nests too deeply");
  require(value.type != Type::kAttribute && value.type != Type::kPayloadEnd &&
              value.type != Type::kNeedMore && value.type != Type::kBad,
          "a value has a type that is none");
  require(!value.is_push() || depth == 0, "a push inside a value");
  ++size.values;
  size.text += value.text.size();
  for (const Value& item : value.items) measure(item, depth + 1, size);
}

struct Talk {
  std::vector<Value> values;
  bool is_bad = false;
  bool at_boundary = false;

  bool operator==(const Talk&) const = default;
};

Talk read_all(std::string_view input, kvferry::fuzz::Cutting cutting) {
  kvferry::fuzz::Pieces pieces(cutting, input);
  ValueReader reader(kLimits);
  Talk talk;
  while (!input.empty() && !talk.is_bad) {
    const std::string_view piece = input.substr(0, pieces.next());
    input.remove_prefix(piece.size());
    reader.feed(as_bytes(piece));
    Value value;
    ValueReader::State state = reader.next(value);
    for (; state == ValueReader::State::kValue; state = reader.next(value)) {
      Size size;
      measure(value, 0, size);
      require(size.values <= kLimits.values_max, "a reply has too many values");
      require(size.text <= kLimits.text_bytes_max, "a reply has too much text");
      talk.values.push_back(std::move(value));
    }
    talk.is_bad = state == ValueReader::State::kBad;
    require(talk.is_bad == !reader.error().empty(),
            "bad without a reason, or a reason for nothing");
  }
  talk.at_boundary = reader.at_boundary();
  return talk;
}

void check_text(const std::string& text, std::string_view what) {
  require(std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f; }), what, text);
}

void check_error(const Error& error) {
  require(!error.context.empty(), "an error says nothing");
  require(error.context.size() < 1000, "an error is a whole reply", error.context);
  check_text(error.context, "an error is not printable");
}

void check_endpoint(const Endpoint& endpoint) {
  require(is_host(endpoint.host) && endpoint.port != 0 && !endpoint.is_unix(),
          "an endpoint that nobody can dial", endpoint.text());
}

void check_node(const Node& node) {
  check_endpoint(node.endpoint);
  check_text(node.zone, "a zone is not printable");
}

Value integer(std::size_t number) {
  return {.type = Type::kInteger,
          .integer = static_cast<std::int64_t>(number),
          .text = {},
          .items = {}};
}
Value text(std::string_view words) {
  return {.type = Type::kBulk, .integer = 0, .text = std::string(words), .items = {}};
}
Value list(std::vector<Value> items) {
  return {.type = Type::kArray, .integer = 0, .text = {}, .items = std::move(items)};
}
Value node_value(const Node& node) {
  return list({text(node.endpoint.host), integer(node.endpoint.port), text("id"),
               list({text("availability-zone"), text(node.zone)})});
}

// The reply that a server with this map would send.
Value slots_value(const SlotMap& map) {
  Value reply = list({});
  for (std::size_t first = 0; first < kSlotCount;) {
    std::size_t last = first;
    while (last + 1 < kSlotCount && map.shard_of(last + 1) == map.shard_of(first)) ++last;
    if (map.shard_of(first) != SlotMap::kNoShard) {
      const Shard& shard = map.shards()[map.shard_of(first)];
      Value entry = list({integer(first), integer(last), node_value(shard.primary)});
      for (const Node& replica : shard.replicas) entry.items.push_back(node_value(replica));
      reply.items.push_back(std::move(entry));
    }
    first = last + 1;
  }
  return reply;
}

void check_map(const SlotMap& map) {
  const std::size_t shards = map.shards().size();
  require(shards <= SlotMap::kShardsMax, "too many shards");
  std::vector<std::size_t> counts(shards, 0);
  std::size_t covered = 0;
  for (std::size_t slot = 0; slot < kSlotCount; ++slot) {
    const std::uint16_t shard = map.shard_of(slot);
    require(shard < shards || shard == SlotMap::kNoShard, "a slot of a shard that is none");
    if (shard == SlotMap::kNoShard) continue;
    ++counts[shard];
    ++covered;
  }
  require(covered == map.covered(), "the covered slots are miscounted");
  require(map.shard_of(kSlotCount) == SlotMap::kNoShard, "a slot beyond the last");
  require(std::ranges::find(counts, 0u) == counts.end(), "a shard without a slot");
  for (const Shard& shard : map.shards()) {
    require(shard.replicas.size() <= SlotMap::kReplicasMax, "too many replicas");
    check_node(shard.primary);
    for (const Node& replica : shard.replicas) check_node(replica);
  }
  Result<SlotMap> again = parse_cluster_slots(slots_value(map), kAsked);
  require(again.has_value(), "a map cannot be told", again ? "" : again.error().context);
  require(*again == map, "a map that is told means something else");
}

void check_endpoints(const Result<std::vector<Endpoint>>& endpoints) {
  if (!endpoints) return check_error(endpoints.error());
  require((*endpoints).size() <= kSentinelNodesMax, "too many nodes");
  for (const Endpoint& endpoint : *endpoints) check_endpoint(endpoint);
}

void check_line(std::string_view line) {
  if (const auto redirect = parse_redirect(line, kAsked.host)) {
    require(redirect->slot < kSlotCount, "a redirect for a slot that is none");
    if (!redirect->endpoint.host.empty()) check_endpoint(redirect->endpoint);
    const std::string again = (redirect->kind == RedirectKind::kAsk ? "ASK " : "MOVED ") +
                              std::to_string(redirect->slot) + " " +
                              (redirect->endpoint.host.empty() ? "?" : redirect->endpoint.host) +
                              ":" + std::to_string(redirect->endpoint.port);
    const auto same = parse_redirect(again, kAsked.host);
    require(same && same->kind == redirect->kind && same->slot == redirect->slot &&
                same->endpoint.text() == redirect->endpoint.text(),
            "a redirect that is told means something else", again);
  }
}

void check_texts(const Value& value) {
  if (!value.text.empty()) {
    check_line(value.text);
    require(key_slot(value.text) < kSlotCount, "a key in a slot that is none");
  }
  for (const Value& item : value.items) check_texts(item);
}

void check_value(const Value& value) {
  Result<SlotMap> map = parse_cluster_slots(value, kAsked);
  if (map) check_map(*map);
  if (!map) check_error(map.error());
  Result<Endpoint> master = parse_master_address(value);
  if (master) check_endpoint(*master);
  if (!master) check_error(master.error());
  check_endpoints(parse_sentinels(value));
  check_endpoints(parse_replicas(value));
  Result<Role> role = parse_role(value);
  if (!role) check_error(role.error());
  if (role && !role->master.host.empty()) check_endpoint(role->master);
  check_texts(value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = kvferry::fuzz::as_input(data, size);
  const Talk whole = read_all(input, kvferry::fuzz::Cutting::kWhole);
  for (const auto cutting : kvferry::fuzz::kCuttings) {
    require(read_all(input, cutting) == whole, "the cut changes the values");
  }
  for (const Value& value : whole.values) check_value(value);
  return 0;
}
