// LEASE and RELEASE without sockets: what is held, for how long, and that it comes back once.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "node/test_store.hpp"

namespace kvferry::node {
namespace {

constexpr std::size_t kValue = 10'000;  // in three pages, all of it behind its first byte

struct LeaseNode : TestNode {
  explicit LeaseNode(std::size_t pages = 64, SessionLimits limits = {},
                     std::size_t in_flight_max = SIZE_MAX, std::vector<UserOptions> users = {})
      : TestNode(pages, std::move(users), limits, in_flight_max) {
    agent.set(77, "meta");
  }
};

std::string value_of(char letter) { return std::string(kValue, letter); }

// The number that follows `at` of the text.
std::uint64_t number_at(std::string_view text, std::size_t at) {
  return std::strtoull(std::string(text.substr(at)).c_str(), nullptr, 10);
}

// What a one-sided read of the only value of this answer finds in memory now.
std::string read_by_address(std::string_view answer) {
  const std::size_t pair = answer.find("*2\r\n:");
  if (pair == std::string_view::npos) return "(no address)";
  const std::uint64_t address = number_at(answer, pair + 5);
  const std::size_t length = number_at(answer, answer.find("\r\n:", pair + 5) + 3);
  return {reinterpret_cast<const char*>(address), length};
}

TEST(SessionLeases, AnAnswerSaysWhereTheBytesAreAndUntilWhen) {
  LeaseNode node;
  TestSession session(node);
  put(*node.store, "k", value_of('v'), node.now);
  put(*node.store, "small", "tiny", node.now);
  const std::string answer = session.command({"LEASE", "5000", "k", "small", "none"});
  EXPECT_TRUE(answer.starts_with("*4\r\n:1\r\n:5000\r\n:77\r\n*3\r\n*1\r\n*2\r\n:")) << answer;
  EXPECT_TRUE(answer.ends_with("*1\r\n$4\r\ntiny\r\n$-1\r\n")) << answer;
  EXPECT_EQ(read_by_address(answer), value_of('v'));
  EXPECT_EQ(session.command({"LEASE", "999999999", "k"}).substr(0, 16), "*4\r\n:2\r\n:10000\r\n");
  EXPECT_EQ(session.command({"LEASE", "5000", "none"}),
            "*4\r\n:0\r\n:5000\r\n:77\r\n*1\r\n$-1\r\n");
  EXPECT_EQ(session.command({"LEASE", "AGENT"}), "*2\r\n:77\r\n$4\r\nmeta\r\n");
}

TEST(SessionLeases, WrongOnesAreAnsweredAsErrors) {
  LeaseNode node;
  TestSession session(node);
  EXPECT_EQ(session.command({"LEASE", "100"}),
            "-ERR wrong number of arguments for 'lease' command\r\n");
  EXPECT_EQ(session.command({"LEASE", "x", "k"}),
            "-ERR value is not an integer or out of range\r\n");
  EXPECT_EQ(session.command({"LEASE", "0", "k"}), "-ERR invalid lease time in 'lease' command\r\n");
  EXPECT_EQ(session.command({"LEASE", "-1", "k"}),
            "-ERR invalid lease time in 'lease' command\r\n");
  EXPECT_EQ(session.command({"RELEASE", "x"}), "-ERR value is not an integer or out of range\r\n");
  TestNode without;
  TestSession other(without);
  EXPECT_EQ(other.command({"LEASE", "AGENT"}), "$-1\r\n");
  EXPECT_EQ(other.command({"LEASE", "100", "k"}),
            "-ERR this node has no agent for one-sided reads\r\n");
}

TEST(SessionLeases, OnlyWhatAUserMayReadIsLeased) {
  LeaseNode node(64, {}, SIZE_MAX, {{.name = "default", .read = {"a:"}, .write = {"a:", "b:"}}});
  TestSession session(node);
  put(*node.store, "b:1", value_of('v'), node.now);
  EXPECT_EQ(session.command({"LEASE", "100", "a:1", "b:1"}),
            "-NOPERM No permissions to access a key\r\n");
  EXPECT_EQ(node.in_flight.bytes(), 0u);
}

TEST(SessionLeases, EvictionAndWritersDoNotTouchALeasedPage) {
  LeaseNode node(8);
  TestSession session(node);
  put(*node.store, "k", value_of('v'), node.now);
  const std::string answer = session.command({"LEASE", "5000", "k"});
  EXPECT_EQ(node.in_flight.bytes(), kValue);
  EXPECT_EQ(session.command({"SET", "k", value_of('w')}), "+OK\r\n");  // another value of the key
  for (int i = 0; i < 20; ++i) put(*node.store, "other" + std::to_string(i), value_of('x'), 0);
  EXPECT_EQ(read_by_address(answer), value_of('v'));
  EXPECT_EQ(session.command({"FLUSHALL"}), "+OK\r\n");
  EXPECT_EQ(read_by_address(answer), value_of('v'));
  EXPECT_GE(node.store->usage().used_bytes, kValue);
  EXPECT_EQ(session.command({"RELEASE", "1"}), ":1\r\n");
  EXPECT_EQ(node.store->usage().used_bytes, 0u);
  EXPECT_EQ(node.in_flight.bytes(), 0u);
}

TEST(SessionLeases, EachEndsOnceHoweverOftenItIsReleased) {
  LeaseNode node;
  TestSession session(node), other(node);
  put(*node.store, "k", value_of('v'), node.now);
  session.command({"LEASE", "5000", "k"});
  session.command({"LEASE", "5000", "k"});
  EXPECT_EQ(other.command({"RELEASE", "1", "2"}), ":0\r\n");  // another connection's
  EXPECT_EQ(session.command({"RELEASE", "1", "1", "9", "0"}), ":1\r\n");
  EXPECT_EQ(session.command({"RELEASE", "1"}), ":0\r\n");
  EXPECT_EQ(node.in_flight.bytes(), kValue);
  EXPECT_EQ(session.command({"RELEASE", "2"}), ":1\r\n");
  EXPECT_EQ(node.in_flight.bytes(), 0u);
}

TEST(SessionLeases, TimeEndsALeaseWhoeverHoldsIt) {
  LeaseNode node;
  TestSession session(node);
  put(*node.store, "k", value_of('v'), node.now);
  session.command({"LEASE", "100", "k"});
  session.command({"LEASE", "200", "k"});
  session.session.expire_leases(node.now + 99);
  EXPECT_EQ(node.in_flight.bytes(), 2 * kValue);
  session.session.expire_leases(node.now + 100);
  EXPECT_EQ(node.in_flight.bytes(), kValue);
  EXPECT_EQ(node.counters.leases_expired.load(), 1u);
  node.now += 200;
  EXPECT_EQ(session.command({"RELEASE", "1", "2"}), ":0\r\n");
  EXPECT_EQ(node.in_flight.bytes(), 0u);
  EXPECT_EQ(node.counters.leases_expired.load(), 2u);
}

TEST(SessionLeases, TheEndOfAConnectionEndsItsLeases) {
  LeaseNode node;
  put(*node.store, "k", value_of('v'), node.now);
  {
    TestSession session(node);
    session.command({"LEASE", "5000", "k"});
    EXPECT_EQ(node.in_flight.bytes(), kValue);
  }
  EXPECT_EQ(node.in_flight.bytes(), 0u);
  node.store->clear();
  EXPECT_EQ(node.store->usage().used_bytes, 0u);
}

TEST(SessionLeases, AnotherUserHasNoneOfThem) {
  LeaseNode node(64, {}, SIZE_MAX,
                 {{.name = "default", .password = {}, .read = {""}, .write = {""}, .admin = true},
                  {.name = "bob", .password = "pw", .read = {"b:"}}});
  put(*node.store, "a:1", value_of('v'), node.now);
  for (const std::vector<std::string>& turn :
       {std::vector<std::string>{"AUTH", "bob", "pw"}, {"HELLO", "2", "AUTH", "bob", "pw"}}) {
    TestSession session(node);
    session.command({"LEASE", "5000", "a:1"});
    session.command({"AUTH", "bob", "wrong"});
    session.command({"AUTH", "default", ""});  // he is that already
    EXPECT_EQ(node.in_flight.bytes(), kValue);
    session.command(turn);
    EXPECT_EQ(node.in_flight.bytes(), 0u);
    EXPECT_EQ(session.command({"RELEASE", "1"}), ":0\r\n");
  }
}

TEST(SessionLeases, NumberAndBytesAreLimitedForEachConnectionAndForAll) {
  SessionLimits limits;
  limits.lease.count_max = 2;
  limits.lease.bytes_max = 2 * kValue;
  LeaseNode node(64, limits, 3 * kValue);
  TestSession session(node), other(node);
  for (const char* const key : {"a", "b", "c"}) put(*node.store, key, value_of('v'), node.now);
  const std::string bytes = "-BUSY too many bytes are leased to this connection\r\n";
  EXPECT_EQ(session.command({"LEASE", "5000", "a", "b", "c"}), bytes);
  EXPECT_EQ(node.in_flight.bytes(), 0u);
  EXPECT_TRUE(session.command({"LEASE", "5000", "a"}).starts_with("*4\r\n:1\r\n"));
  EXPECT_EQ(session.command({"LEASE", "5000", "b", "c"}), bytes);
  EXPECT_TRUE(session.command({"LEASE", "5000", "b"}).starts_with("*4\r\n:2\r\n"));
  EXPECT_EQ(session.command({"LEASE", "5000", "c"}),
            "-BUSY too many leases on this connection\r\n");
  EXPECT_TRUE(other.command({"LEASE", "5000", "a"}).starts_with("*4\r\n:1\r\n"));
  EXPECT_EQ(other.command({"LEASE", "5000", "b"}),
            "-BUSY too many bytes are on their way already\r\n");
  session.command({"RELEASE", "2"});
  EXPECT_TRUE(other.command({"LEASE", "5000", "b"}).starts_with("*4\r\n:2\r\n"));
  EXPECT_EQ(node.counters.busy.load(), 4u);
  // What was released or is over counts no more.
  EXPECT_EQ(session.command({"RELEASE", "1"}), ":1\r\n");
  EXPECT_EQ(other.command({"RELEASE", "1", "2"}), ":2\r\n");
  EXPECT_TRUE(session.command({"LEASE", "50", "a", "b"}).starts_with("*4\r\n:3\r\n"));
  node.now += 50;
  EXPECT_TRUE(session.command({"LEASE", "50", "a", "b"}).starts_with("*4\r\n:4\r\n"));
}

}  // namespace
}  // namespace kvferry::node
