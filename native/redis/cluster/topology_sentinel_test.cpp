#include "redis/cluster/topology_sentinel.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/test_names.hpp"

namespace kvferry::redis {
namespace {

resp::Value reply(std::string_view stream) {
  resp::ValueReader reader;
  reader.feed(as_bytes(stream));
  resp::Value value;
  EXPECT_EQ(reader.next(value), resp::ValueReader::State::kValue) << stream;
  return value;
}

std::string bulk(std::string_view text) {
  return "$" + std::to_string(text.size()) + "\r\n" + std::string(text) + "\r\n";
}

std::string show(const Error& error) {
  return std::string(name(error.code)) + ": " + error.context;
}
std::string show(const Result<net::Endpoint>& endpoint) {
  return endpoint ? (*endpoint).text() : show(endpoint.error());
}
std::string show(const Result<std::vector<net::Endpoint>>& endpoints) {
  if (!endpoints) return show(endpoints.error());
  std::string out;
  for (const net::Endpoint& endpoint : *endpoints) out += endpoint.text() + " ";
  return out;
}
std::string show(const Result<Role>& result) {
  if (!result) return show(result.error());
  const Role& role = *result;
  const std::string offset = " " + std::to_string(role.offset);
  if (role.kind == RoleKind::kSentinel) return "sentinel";
  if (role.kind == RoleKind::kMaster) return "master" + offset;
  return "replica of " + role.master.text() + (role.is_linked ? " linked" : " cut off") + offset;
}

// A row of SENTINEL SENTINELS or REPLICAS from "key value key value ...".
std::string row(const std::vector<std::string>& words, bool is_map = false) {
  std::string out = (is_map ? "%" : "*") + std::to_string(words.size() / (is_map ? 2 : 1)) + "\r\n";
  for (const std::string& word : words) out += bulk(word);
  return out;
}

TEST(Sentinel, MasterAddress) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"*2\r\n" + bulk("10.0.0.1") + bulk("6379"), "10.0.0.1:6379"},
      {"*2\r\n" + bulk("2001:db8::1") + bulk("6379"), "[2001:db8::1]:6379"},
      {"*2\r\n" + bulk("cache.example") + ":6379\r\n", "cache.example:6379"},
      {"*-1\r\n", "resolve: the Sentinel knows no master of that name"},
      {"_\r\n", "resolve: the Sentinel knows no master of that name"},
      {"-IDONTKNOW I have not enough information\r\n",
       "server: SENTINEL GET-MASTER-ADDR-BY-NAME: IDONTKNOW I have not enough information"},
  };
  for (const auto& [stream, expected] : cases) {
    EXPECT_EQ(show(parse_master_address(reply(stream))), expected);
  }
  for (const std::string& stream : std::vector<std::string>{
           "+OK\r\n", "*0\r\n", "*1\r\n" + bulk("a"), "*3\r\n" + bulk("a") + bulk("1") + bulk("2"),
           "*2\r\n" + bulk("a") + bulk("x"), "*2\r\n" + bulk("a") + bulk("0"),
           "*2\r\n" + bulk("a") + bulk("65536"), "*2\r\n" + bulk("") + bulk("1"),
           "*2\r\n" + bulk("a b") + bulk("1"), "*2\r\n:1\r\n:1\r\n",
           ">2\r\n" + bulk("a") + bulk("1")}) {
    const auto address = parse_master_address(reply(stream));
    ASSERT_FALSE(address) << stream;
    EXPECT_EQ(address.error().code, Errc::kProtocol) << stream;
  }
}

TEST(Sentinel, OtherSentinels) {
  for (const bool is_map : {false, true}) {
    const std::string rows =
        row({"name", "id1", "ip", "10.0.0.1", "port", "26379", "flags", "sentinel"}, is_map) +
        row({"name", "id2", "ip", "::1", "port", "26380", "flags", "s_down,sentinel"}, is_map) +
        row({"name", "id3", "ip", "", "port", "26379"}, is_map) +
        row({"name", "id4", "ip", "10.0.0.4", "port", "0"}, is_map) + row({"name", "ip"}, is_map);
    EXPECT_EQ(show(parse_sentinels(reply("*5\r\n" + rows))), "10.0.0.1:26379 [::1]:26380 ");
  }
  EXPECT_EQ(show(parse_sentinels(reply("*0\r\n"))), "");
  EXPECT_EQ(show(parse_sentinels(reply("*2\r\n:1\r\n_\r\n"))), "") << "rows that are none";
  EXPECT_EQ(show(parse_sentinels(reply("-ERR No such master with that name\r\n"))),
            "server: SENTINEL SENTINELS: ERR No such master with that name");
  EXPECT_EQ(show(parse_sentinels(reply("+OK\r\n"))),
            "protocol: SENTINEL SENTINELS: the reply is not what it should be");
  std::string many = "*" + std::to_string(kSentinelNodesMax + 1) + "\r\n";
  for (std::size_t index = 0; index <= kSentinelNodesMax; ++index) many += "*0\r\n";
  EXPECT_EQ(show(parse_sentinels(reply(many))),
            "capacity: SENTINEL SENTINELS: more than 128 nodes");
}

TEST(Sentinel, ReplicasThatMayBeRead) {
  const auto replica = [](std::string_view host, std::string_view flags, std::string_view link) {
    return row({"ip", std::string(host), "port", "6379", "flags", std::string(flags),
                "master-link-status", std::string(link)});
  };
  EXPECT_EQ(show(parse_replicas(reply(
                "*6\r\n" + replica("a", "slave", "ok") + replica("b", "s_down,slave", "ok") +
                replica("c", "slave,o_down", "ok") + replica("d", "slave,disconnected", "ok") +
                replica("e", "slave", "err") + replica("f", "slave", "ok")))),
            "a:6379 f:6379 ");
}

TEST(Sentinel, Roles) {
  const std::string host = bulk("10.0.0.1");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"*3\r\n$6\r\nmaster\r\n:14\r\n*0\r\n", "master 14"},
      {"*3\r\n$6\r\nmaster\r\n:14\r\n*1\r\n*3\r\n" + host + bulk("6380") + bulk("14"), "master 14"},
      {"*5\r\n$5\r\nslave\r\n" + host + ":6379\r\n" + bulk("connected") + ":14\r\n",
       "replica of 10.0.0.1:6379 linked 14"},
      {"*5\r\n$7\r\nreplica\r\n" + host + ":6379\r\n" + bulk("sync") + ":-1\r\n",
       "replica of 10.0.0.1:6379 cut off -1"},
      {"*5\r\n$5\r\nslave\r\n" + host + ":6379\r\n" + bulk("connect") + ":-1\r\n",
       "replica of 10.0.0.1:6379 cut off -1"},
      {"*5\r\n$5\r\nslave\r\n" + bulk("?") + ":0\r\n" + bulk("connect") + ":-1\r\n",
       "replica of :0 cut off -1"},
      {"*2\r\n$8\r\nsentinel\r\n*1\r\n" + bulk("mymaster"), "sentinel"},
      {"-NOAUTH Authentication required.\r\n", "server: ROLE: NOAUTH Authentication required."},
  };
  for (const auto& [stream, expected] : cases) EXPECT_EQ(show(parse_role(reply(stream))), expected);
  for (const std::string& stream : std::vector<std::string>{
           "*0\r\n", "+master\r\n", "*1\r\n:1\r\n", "*1\r\n$6\r\nmaster\r\n",
           "*3\r\n$6\r\nmaster\r\n_\r\n*0\r\n", "*3\r\n$6\r\nleader\r\n:1\r\n*0\r\n",
           "*4\r\n$5\r\nslave\r\n" + host + ":1\r\n" + bulk("connected"),
           "*5\r\n$5\r\nslave\r\n" + host + "_\r\n" + bulk("connected") + ":1\r\n",
           "*5\r\n$5\r\nslave\r\n" + host + ":1\r\n_\r\n:1\r\n"}) {
    EXPECT_EQ(show(parse_role(reply(stream))), "protocol: ROLE: the reply is not what it should be")
        << stream;
  }
}

}  // namespace
}  // namespace kvferry::redis
