#include "redis/cluster/topology_cluster.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/test_names.hpp"

namespace kvferry::redis {
namespace {

const net::Endpoint kAsked{.host = "seed", .port = 7000, .unix_path = {}};

resp::Value reply(std::string_view stream) {
  resp::ValueReader reader;
  reader.feed(as_bytes(stream));
  resp::Value value;
  EXPECT_EQ(reader.next(value), resp::ValueReader::State::kValue) << stream;
  return value;
}

std::string show(const Node& node) {
  return node.endpoint.text() + (node.zone.empty() ? "" : "@" + node.zone);
}

// "16384: a:1 (r:2) 100, b:3 16284" or the error: the slots covered, then each shard with its
// replicas and its number of slots.
std::string show(const Result<SlotMap>& result) {
  if (!result) return std::string(name(result.error().code)) + ": " + result.error().context;
  const SlotMap& map = *result;
  std::string out = std::to_string(map.covered()) + ":";
  for (std::size_t index = 0; index < map.shards().size(); ++index) {
    const Shard& shard = map.shards()[index];
    out += (index == 0 ? " " : ", ") + show(shard.primary);
    for (const Node& replica : shard.replicas) out += " (" + show(replica) + ")";
    std::size_t count = 0;
    for (std::size_t slot = 0; slot < kSlotCount; ++slot) count += map.shard_of(slot) == index;
    out += " " + std::to_string(count);
  }
  return out;
}

std::string parsed(std::string_view stream) {
  return show(parse_cluster_slots(reply(stream), kAsked));
}

// One entry that covers every slot, around the nodes given as RESP.
std::string whole(const std::vector<std::string>& nodes) {
  std::string out = "*1\r\n*" + std::to_string(2 + nodes.size()) + "\r\n:0\r\n:16383\r\n";
  for (const std::string& node : nodes) out += node;
  return out;
}

// A node as servers since 4.0 tell it: host, port, id; `host` and `metadata` as RESP.
std::string node(const std::string& host, const std::string& port = ":6379\r\n",
                 const std::string& metadata = "") {
  return (metadata.empty() ? "*3\r\n" : "*4\r\n") + host + port + "$2\r\nid\r\n" + metadata;
}

std::string bulk(std::string_view text) {
  return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
}

TEST(ClusterSlots, OfEveryVersion) {
  EXPECT_EQ(parsed("*2\r\n*4\r\n:0\r\n:8191\r\n*2\r\n$8\r\n10.0.0.1\r\n:6379\r\n*2\r\n$8\r\n"
                   "10.0.0.2\r\n:6379\r\n*3\r\n:8192\r\n:16383\r\n*2\r\n$8\r\n10.0.0.3\r\n"
                   ":6380\r\n"),
            "16384: 10.0.0.1:6379 (10.0.0.2:6379) 8192, 10.0.0.3:6380 8192")
      << "Redis 3";
  EXPECT_EQ(parsed(whole({node(bulk("10.0.0.1")), node(bulk("10.0.0.2"))})),
            "16384: 10.0.0.1:6379 (10.0.0.2:6379) 16384")
      << "Redis 4 to 6";
  EXPECT_EQ(parsed(whole({node(bulk("10.0.0.1"), ":1\r\n", "*0\r\n"),
                          node(bulk("10.0.0.2"), ":2\r\n", "*2\r\n" + bulk("hostname") + bulk("b")),
                          node(bulk("10.0.0.3"), ":3\r\n", "%0\r\n")})),
            "16384: 10.0.0.1:1 (10.0.0.2:2) (10.0.0.3:3) 16384")
      << "Redis 7 over RESP2 and RESP3";
  for (const char* metadata : {"%2\r\n", "*4\r\n"}) {
    const std::string zones =
        metadata + bulk("ip") + bulk("127.0.0.1") + bulk("availability-zone") + bulk("eu-1a");
    EXPECT_EQ(parsed(whole({node(bulk("a.example"), ":1\r\n", zones), node(bulk("b"))})),
              "16384: a.example:1@eu-1a (b:6379) 16384")
        << "Valkey 9";
  }
}

TEST(ClusterSlots, AnUnnamedHostIsTheOneThatWasAsked) {
  const std::string ip = "%1\r\n" + bulk("ip") + bulk("10.0.0.1");
  for (const std::string& host : {std::string("$-1\r\n"), std::string("_\r\n"), bulk("")}) {
    EXPECT_EQ(parsed(whole({node(host), node(host, ":7001\r\n", ip)})),
              "16384: seed:6379 (seed:7001) 16384");
  }
}

TEST(ClusterSlots, AnUnknownNameGivesWayToTheAddress) {
  const std::string unknown = bulk("?");
  const auto ip = [](std::string_view text) { return "%1\r\n" + bulk("ip") + bulk(text); };
  EXPECT_EQ(parsed(whole({node(unknown, ":1\r\n", ip("10.0.0.1"))})), "16384: 10.0.0.1:1 16384");
  EXPECT_EQ(parsed(whole({node(unknown, ":1\r\n", ip(""))})), "16384: seed:1 16384");
  EXPECT_EQ(parsed(whole({node(bulk("a")), node(unknown), node(bulk("b"))})),
            "16384: a:6379 (b:6379) 16384");
  EXPECT_EQ(parsed(whole({node(unknown), node(bulk("b"))})), "0:")
      << "a replica does not become the primary because that has no name";
  EXPECT_EQ(parsed(whole({node(unknown, ":1\r\n", ip("?"))})).substr(0, 9), "protocol:");
}

TEST(ClusterSlots, NamesAndAddresses) {
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {"2001:db8::1", "[2001:db8::1]:6379"},
      {"[2001:db8::1]", "[2001:db8::1]:6379"},
      {"::ffff:10.0.0.1", "[::ffff:10.0.0.1]:6379"},
      {"node-1.cache.example", "node-1.cache.example:6379"},
      {"redis_1", "redis_1:6379"},
  };
  for (const auto& [host, text] : cases) {
    EXPECT_EQ(parsed(whole({node(bulk(host))})), "16384: " + std::string(text) + " 16384");
  }
  EXPECT_EQ(parsed(whole({node(bulk("a"), bulk("6380"))})), "16384: a:6380 16384")
      << "a proxy may send numbers as bulks";
}

TEST(ClusterSlots, NoEntriesIsAnEmptyMap) {
  EXPECT_EQ(parsed("*0\r\n"), "0:");
  EXPECT_EQ(parsed("~0\r\n"), "0:");
}

TEST(ClusterSlots, RangesOfOnePrimaryAreOneShard) {
  const std::string a = node(bulk("a"));
  const std::string b = node(bulk("b"));
  const std::string r = node(bulk("r"));
  EXPECT_EQ(parsed("*3\r\n*4\r\n:0\r\n:9\r\n" + a + r + "*3\r\n:20\r\n:29\r\n" + b +
                   "*4\r\n:10\r\n:19\r\n" + a + r),
            "30: a:6379 (r:6379) 20, b:6379 10");
}

TEST(ClusterSlots, ErrorRepliesAreRepeated) {
  EXPECT_EQ(parsed("-ERR This instance has cluster support disabled\r\n"),
            "server: CLUSTER SLOTS: ERR This instance has cluster support disabled");
  EXPECT_EQ(parsed("!8\r\nNOAUTH\x1b\x07\r\n"), "server: CLUSTER SLOTS: NOAUTH??");
  EXPECT_EQ(parsed("-\r\n"), "server: CLUSTER SLOTS: ") << "an error without a text is one";
}

TEST(ClusterSlots, WhatIsWrongIsSaid) {
  const std::string a = node(bulk("a"));
  const std::string long_name(256, 'a');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"+OK\r\n", "the reply is not a list"},
      {"_\r\n", "the reply is not a list"},
      {"%1\r\n:1\r\n*0\r\n", "the reply is not a list"},
      {">1\r\n*0\r\n", "the reply is not a list"},
      {"*1\r\n:1\r\n", "an entry is not"},
      {"*1\r\n*0\r\n", "an entry is not"},
      {"*1\r\n*2\r\n:0\r\n:1\r\n", "an entry is not"},
      {"*1\r\n*3\r\n+a\r\n:1\r\n" + a, "a slot is not a number"},
      {"*1\r\n*3\r\n:0\r\n_\r\n" + a, "a slot is not a number"},
      {"*1\r\n*3\r\n:0\r\n:1\r\n+a\r\n", "a node is not"},
      {"*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n+a\r\n", "a node is not"},
      {"*1\r\n*3\r\n:0\r\n:16384\r\n" + a, "slots 0 to 16384"},
      {"*1\r\n*3\r\n:-1\r\n:1\r\n" + a, "slots -1 to 1"},
      {"*1\r\n*3\r\n:9\r\n:1\r\n" + a, "slots 9 to 1"},
      {"*2\r\n*3\r\n:0\r\n:5\r\n" + a + "*3\r\n:5\r\n:9\r\n" + node(bulk("b")), "slot 5 from two"},
      {whole({node(":1\r\n")}), "a host is not a text"},
      {whole({node("-ERR\r\n")}), "a host is not a text"},
      {whole({node(bulk("a b"))}), "characters that no host name has"},
      {whole({node(bulk("a\r\nb"))}), "characters that no host name has"},
      {whole({node(bulk("/run/redis.sock"))}), "characters that no host name has"},
      {whole({node(bulk(long_name))}), "characters that no host name has"},
      {whole({a, node(bulk("b;c"))}), "characters that no host name has"},
      {whole({node(bulk("a"), ":0\r\n")}), "port 0 of a is not 1 to 65535"},
      {whole({node(bulk("a"), ":65536\r\n")}), "port 65536 of a"},
      {whole({node(bulk("a"), ":-1\r\n")}), "port -1 of a"},
      {whole({node(bulk("a"), "_\r\n")}), "a port is not a number"},
      {whole({a, node(bulk("b"), ":0\r\n")}), "port 0 of b"},
  };
  for (const auto& [stream, reason] : cases) {
    const std::string error = parsed(stream);
    EXPECT_EQ(error.substr(0, 10), "protocol: ") << stream;
    EXPECT_NE(error.find(reason), std::string::npos) << error;
    EXPECT_EQ(error.find(long_name), std::string::npos) << "the server's text is repeated";
  }
}

TEST(ClusterSlots, TooMuchOfEverything) {
  resp::Value entry = reply("*3\r\n:0\r\n:0\r\n" + node(bulk("a")));
  resp::Value slots{.type = resp::Type::kArray, .integer = 0, .text = {}, .items = {}};
  slots.items.assign(kSlotCount + 1, entry);
  EXPECT_EQ(show(parse_cluster_slots(slots, kAsked)),
            "protocol: CLUSTER SLOTS: more entries than there are slots");
  // Every slot its own primary: more servers than we would connect to.
  slots.items.pop_back();
  for (std::size_t slot = 0; slot < kSlotCount; ++slot) {
    slots.items[slot].items[0].integer = slots.items[slot].items[1].integer =
        static_cast<std::int64_t>(slot);
    slots.items[slot].items[2].items[0].text = "n" + std::to_string(slot);
  }
  EXPECT_EQ(show(parse_cluster_slots(slots, kAsked)),
            "capacity: the cluster has more than 1024 primaries");
  const std::string zone = "%1\r\n" + bulk("availability-zone") + bulk(std::string(300, '\n'));
  EXPECT_EQ(parsed(whole({node(bulk("a"), ":1\r\n", zone)})),
            "16384: a:1@" + std::string(100, '?') + " 16384");
}

}  // namespace
}  // namespace kvferry::redis
