// Any commands: replies of every shape, those that nobody waits for any more, and whom a cluster's
// client asks.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/client_driver.hpp"
#include "fuzz/reply_driver.hpp"
#include "fuzz/scripted_cluster.hpp"
#include "redis/link.hpp"

namespace kvferry::redis {
namespace {

using Peer = ScriptedServer::Peer;
using Words = ScriptedServer::Command;

std::string request(const std::vector<std::string_view>& words) { return encode_words(words); }

std::shared_ptr<Batch> make_call(const std::vector<std::string_view>& words,
                                 std::string_view key = "", Nanos deadline = kNever) {
  auto batch = std::make_shared<Batch>(Batch::Options{.verb = Verb::kCall, .deadline = deadline});
  batch->add_call(key, request(words));
  batch->quiet = true;
  return batch;
}

resp::Value& reply(Batch& batch, std::size_t index = 0) {
  return batch.reply(batch.commands()[index]);
}

std::string shown(const resp::Value& value) {
  if (value.type == resp::Type::kInteger) return std::to_string(value.integer);
  if (value.is_null()) return "null";
  if (value.is_error()) return "error:" + value.text;
  if (value.items.empty() && !value.text.empty()) return value.text;
  std::string text;
  for (const resp::Value& each : value.items) text += (text.empty() ? "" : " ") + shown(each);
  return "[" + text + "]";
}

struct Shape {
  std::string_view stream;
  std::string_view shown;
};

constexpr Shape kShapes[] = {
    {"+PONG\r\n", "PONG"},
    {":7\r\n", "7"},
    {"$-1\r\n", "null"},
    {"$5\r\nhello\r\n", "hello"},
    {"=9\r\ntxt:hello\r\n", "hello"},
    {"*0\r\n", "[]"},
    {"*3\r\n:1\r\n*2\r\n$1\r\na\r\n_\r\n+b\r\n", "[1 [a null] b]"},
    {"%1\r\n+k\r\n$1\r\nv\r\n", "[k v]"},
    {"*2\r\n-ERR inside\r\n:1\r\n", "[error:ERR inside 1]"},
    {"*2\r\n!4\r\nOOPS\r\n:1\r\n", "[error:OOPS 1]"},
    {"|1\r\n+ttl\r\n$3\r\n100\r\n:7\r\n", "7"},
    {">2\r\n+invalidate\r\n$3\r\nkey\r\n:7\r\n", "7"},
    {"*2\r\n|1\r\n+a\r\n$1\r\nb\r\n:1\r\n:2\r\n", "[1 2]"},
};

TEST(Calls, TheReplyMayHaveAnyShape) {
  for (const Shape& shape : kShapes) {
    for (const std::size_t step : {std::size_t{1}, std::size_t{3}, SIZE_MAX}) {
      const auto batch = make_call({"ASK"}, "k");
      ReplyDriver driver;
      driver.expect(*batch);
      EXPECT_TRUE(driver.deliver(shape.stream, step)) << shape.stream;
      EXPECT_EQ(driver.trace(), "k=OK") << shape.stream;
      EXPECT_EQ(shown(reply(*batch)), shape.shown);
      EXPECT_EQ(driver.replies().in_flight(), 0u);
    }
  }
}

TEST(Calls, ErrorsAreThoseOfEveryCommand) {
  for (const auto& [stream, trace] : {
           std::pair{"-ERR no\r\n", "k=SERVER_ERROR(ERR no)"},
           std::pair{"!6\r\nERR no\r\n", "k=SERVER_ERROR(ERR no)"},
           std::pair{"-LOADING it\r\n", "k=UNAVAILABLE(LOADING it)"},
           std::pair{"-MOVED 1 a:1\r\n", "k=UNAVAILABLE(MOVED 1 a:1)"},
       }) {
    const auto batch = make_call({"ASK"}, "k");
    ReplyDriver driver;
    driver.expect(*batch);
    EXPECT_TRUE(driver.deliver(stream, 2));
    EXPECT_EQ(driver.trace(), trace);
  }
}

TEST(Calls, AReplyWithoutEndIsRefused) {
  const auto batch = make_call({"ASK"}, "k");
  ReplyDriver driver(64 * kKiB, 64 * kMiB);
  driver.expect(*batch);
  EXPECT_FALSE(driver.deliver("$5000000\r\n"));
  EXPECT_EQ(driver.trace(), "k=SERVER_ERROR(a reply has too much text)");
}

// Whoever waited has gone, at any byte of the reply: what comes is read away, and the next command
// has its own answer.
TEST(Calls, AReplyThatNobodyWaitsForIsReadAway) {
  for (const Shape& shape : kShapes) {
    for (std::size_t cut = 0; cut < shape.stream.size(); ++cut) {
      const auto gone = make_call({"ASK"}, "gone");
      const auto next = make_call({"ASK"}, "next");
      ReplyDriver driver;
      driver.expect(*gone);
      driver.expect(*next);
      ASSERT_TRUE(driver.deliver(shape.stream.substr(0, cut)));
      gone->cancel();
      ASSERT_TRUE(driver.replies().release(0));
      ASSERT_TRUE(driver.deliver(shape.stream.substr(cut))) << shape.stream << cut;
      ASSERT_TRUE(driver.deliver("*1\r\n:1\r\n"));
      EXPECT_EQ(driver.trace(), "gone=CANCELLED next=OK");
      EXPECT_EQ(shown(reply(*next)), "[1]") << shape.stream << cut;
    }
  }
}

TEST(Calls, AReplyThatBrokeOffBeginsAnew) {
  const auto batch = make_call({"ASK"}, "k");
  ReplyDriver driver;
  driver.expect(*batch);
  ASSERT_TRUE(driver.deliver("*3\r\n:1\r\n$5\r\nhe"));
  std::size_t back = 0;
  driver.replies().abandon([&](Work) { ++back; });
  ASSERT_EQ(back, 1u);
  driver.expect(*batch);
  ASSERT_TRUE(driver.deliver("*1\r\n:2\r\n"));
  EXPECT_EQ(shown(reply(*batch)), "[2]");
}

TEST(Calls, OneServerAnswersAnything) {
  const std::string large(500'000, 'v');
  std::atomic<int> broken{0};
  ScriptedServer server([&](Peer& peer, const Words& words) {
    if (words[0] == "SIZES") {
      std::string text = "*" + std::to_string(words.size()) + "\r\n";
      for (const std::string& word : words) text += ":" + std::to_string(word.size()) + "\r\n";
      peer.send(text);
      return true;
    }
    if (words[0] == "BREAK") {
      if (broken.fetch_add(1) == 0) return peer.hang_up(), true;
      peer.send("+WELL\r\n");
      return true;
    }
    return words[0] == "NEVER";
  });
  const auto client = open(client_config(server.port()));
  const auto sizes = make_call({"SIZES", large, ""});
  EXPECT_EQ(run(*client, sizes), "OK");
  EXPECT_EQ(shown(reply(*sizes)), "[5 500000 0]");
  const auto again = make_call({"BREAK"});
  EXPECT_EQ(run(*client, again), "OK") << "as every command, it is asked on another connection";
  EXPECT_EQ(shown(reply(*again)), "WELL");
  const auto never = make_call({"NEVER"}, "", monotonic_ns() + 50 * kMilli);
  EXPECT_EQ(run(*client, never), "TIMEOUT");
  const std::string longest(Batch::kCallBytesMax, 'v');
  EXPECT_EQ(run(*client, make_call({"SIZES", longest})), std::string(name(Errc::kInvalidArgument)));
  EXPECT_EQ(client->router().primaries().size(), 1u);
}

TEST(Calls, AClusterIsAskedByKeyOrByNode) {
  ScriptedCluster cluster(2, [&](std::size_t node, Peer& peer, const Words& words) {
    if (words[0] != "WHO") return false;
    if (words.size() > 1 && node == 0) return peer.send(cluster.redirect("MOVED", "a", 1)), true;
    peer.send(":" + std::to_string(node) + "\r\n");
    return true;
  });
  Config config = client_config(cluster.port(0));
  config.topology = Topology::kCluster;
  config.connect_timeout = config.stall_timeout = 2 * kSecond;
  const auto client = open(config);
  const auto first = make_call({"WHO"}, "b");
  ASSERT_EQ(run(*client, first), "OK") << "it waits for the map";
  EXPECT_EQ(shown(reply(*first)), "0");
  const auto second = make_call({"WHO"}, "a");
  ASSERT_EQ(run(*client, second), "OK");
  EXPECT_EQ(shown(reply(*second)), "1");
  const auto primaries = client->router().primaries();
  ASSERT_EQ(primaries.size(), 2u);
  for (std::size_t node = 0; node < 2; ++node) {
    const auto named = make_call({"WHO"});
    named->node = primaries[node];
    ASSERT_EQ(run(*client, named), "OK");
    EXPECT_TRUE(primaries[node].ends_with(
        std::to_string(cluster.port(std::size_t(reply(*named).integer)))));
  }
  const auto moved = make_call({"WHO", "a"});
  moved->node = "127.0.0.1:" + std::to_string(cluster.port(0));
  ASSERT_EQ(run(*client, moved), "OK") << "a key may have moved";
  EXPECT_EQ(shown(reply(*moved)), "1");
  const auto stranger = make_call({"WHO"});
  stranger->node = "127.0.0.1:1";
  EXPECT_EQ(run(*client, stranger), "UNAVAILABLE");
}

}  // namespace
}  // namespace kvferry::redis
