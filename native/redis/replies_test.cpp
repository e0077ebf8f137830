#include "redis/replies.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fuzz/reply_driver.hpp"
#include "redis/server_error.hpp"

namespace kvferry::redis {
namespace {

std::unique_ptr<Batch> command(Verb verb, std::string_view key, MutableBytes buffer = {},
                               Nanos deadline = kNever) {
  auto batch = std::make_unique<Batch>(Batch::Options{.verb = verb, .deadline = deadline});
  batch->add(key, buffer);
  return batch;
}

// What one command makes of one stream: its trace, "!" when the stream is poisoned, "R" when the
// connection should be made anew.
std::string outcome(Verb verb, std::string_view stream, std::size_t buffer_size = 5,
                    std::size_t receive_size = SIZE_MAX) {
  GuardedTarget target(buffer_size);
  const auto batch = command(verb, "k", verb <= Verb::kSet ? target.bytes() : MutableBytes{});
  ReplyDriver driver;
  driver.expect(*batch);
  const bool alive = driver.deliver(stream, receive_size);
  EXPECT_TRUE(target.intact()) << stream;
  std::string text = driver.trace();
  if (driver.replies().wants_reconnect()) text += "R";
  if (!alive) text += "!";
  return text;
}

TEST(Replies, EachVerbUnderstandsItsReply) {
  EXPECT_EQ(outcome(Verb::kGet, "$5\r\nhello\r\n"), "k=OK");
  EXPECT_EQ(outcome(Verb::kGet, "$-1\r\n"), "k=MISS");
  EXPECT_EQ(outcome(Verb::kGet, "_\r\n"), "k=MISS");
  EXPECT_EQ(outcome(Verb::kGet, "*-1\r\n"), "k=MISS");
  EXPECT_EQ(outcome(Verb::kSet, "+OK\r\n"), "k=OK");
  for (const Verb verb : {Verb::kExists, Verb::kTouch, Verb::kDelete}) {
    EXPECT_EQ(outcome(verb, ":1\r\n"), "k=OK");
    EXPECT_EQ(outcome(verb, ":0\r\n"), "k=MISS");
  }
}

TEST(Replies, ErrorsSayWhatTheyMean) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"WRONGTYPE Operation against a key", "SERVER_ERROR"},
      {"OOM command not allowed", "SERVER_ERROR"},
      {"NOREPLICAS Not enough good replicas", "SERVER_ERROR"},
      {"LOADING Redis is loading", "UNAVAILABLE"},
      {"BUSY running a script", "UNAVAILABLE"},
      {"MASTERDOWN Link is down", "UNAVAILABLE"},
      {"NOPERM no permissions", "SERVER_ERROR"},
      {"ERR unknown command 'TOUCH'", "SERVER_ERROR"},
      {"WRONGPASS not any more", "UNAVAILABLE"},
      {"READONLY You can't write", "UNAVAILABLE R"},
      {"NOAUTH Authentication required.", "UNAVAILABLE R"},
  };
  for (const auto& [text, meaning] : cases) {
    const bool anew = meaning.ends_with(" R");
    const std::string expected =
        "k=" + meaning.substr(0, meaning.find(' ')) + "(" + text + ")" + (anew ? "R" : "");
    const std::string bulk = "!" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
    for (const std::size_t step : {std::size_t{1}, std::size_t{7}, SIZE_MAX}) {
      EXPECT_EQ(outcome(Verb::kSet, "-" + text + "\r\n", 5, step), expected);
      EXPECT_EQ(outcome(Verb::kGet, bulk, 5, step), expected);
    }
  }
}

TEST(Replies, ErrorTextIsCutAndPrintable) {
  const std::string text = "ERR " + std::string(3000, 'x') + "\x01";
  const std::string bulk = "!" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
  const std::string cut = "k=SERVER_ERROR(" + text.substr(0, kErrorTextMax) + ")";
  EXPECT_EQ(outcome(Verb::kGet, bulk), cut);
  EXPECT_EQ(outcome(Verb::kGet, bulk, 5, 3), cut);
  EXPECT_EQ(outcome(Verb::kGet, "-ERR a\tb\r\n"), "k=SERVER_ERROR(ERR a?b)");
}

TEST(Replies, UnexpectedTypesPoisonTheStream) {
  const std::vector<std::pair<Verb, std::string>> cases = {
      {Verb::kGet, "+OK\r\n"},         {Verb::kGet, ":1\r\n"},
      {Verb::kGet, "*1\r\n:1\r\n"},    {Verb::kGet, "%0\r\n"},
      {Verb::kGet, "~0\r\n"},          {Verb::kGet, "=5\r\ntxt:a\r\n"},
      {Verb::kGet, "#t\r\n"},          {Verb::kGet, ",1.5\r\n"},
      {Verb::kGet, "(12\r\n"},         {Verb::kSet, "$5\r\nhello\r\n"},
      {Verb::kSet, "$-1\r\n"},         {Verb::kSet, ":1\r\n"},
      {Verb::kSet, "+QUEUED\r\n"},     {Verb::kExists, "+OK\r\n"},
      {Verb::kExists, "_\r\n"},        {Verb::kTouch, "$1\r\n1\r\n"},
      {Verb::kDelete, "*1\r\n:1\r\n"}, {Verb::kDelete, "#t\r\n"},
  };
  for (const auto& [verb, stream] : cases) {
    EXPECT_EQ(outcome(verb, stream),
              "k=SERVER_ERROR(the server sent a reply of an unexpected type)!")
        << stream;
  }
}

TEST(Replies, WhatIsNoRespPoisonsAndSettlesNothing) {
  for (const std::string_view stream : {"HTTP/1.1 400 Bad Request\r\n", "$x\r\n", "$5\r\nhelloXY",
                                        "$2097152\r\n", "\r\n", "+OK\n"}) {
    EXPECT_EQ(outcome(Verb::kGet, stream), "!") << stream;
    EXPECT_EQ(outcome(Verb::kGet, stream, 5, 1), "!") << stream;
  }
  EXPECT_EQ(outcome(Verb::kGet, std::string(9000, '+')), "!");
}

TEST(Replies, NobodyAsked) {
  ReplyDriver driver;
  EXPECT_FALSE(driver.deliver("+OK\r\n"));
  EXPECT_EQ(driver.replies().error().context, "a reply that nobody asked for");
  ReplyDriver refused;
  EXPECT_FALSE(refused.deliver("-ERR max number of clients reached\r\n"));
  EXPECT_EQ(refused.replies().error().context, "ERR max number of clients reached");
  ReplyDriver bulk;
  EXPECT_FALSE(bulk.deliver("$5\r\n"));
}

TEST(Replies, SizeMismatchIsDrainedAndTheNextReplyIsFound) {
  for (const std::string_view value : {"", "hell", "hello!", "hello, world"}) {
    for (const std::size_t step : {1u, 2u, 5u, 100u}) {
      GuardedTarget first(5);
      GuardedTarget second(5);
      Batch batch({.verb = Verb::kGet});
      batch.add("a", first.bytes());
      batch.add("b", second.bytes());
      ReplyDriver driver;
      driver.expect(batch);
      const std::string stream =
          "$" + std::to_string(value.size()) + "\r\n" + std::string(value) + "\r\n$5\r\nhello\r\n";
      ASSERT_TRUE(driver.deliver(stream, step));
      EXPECT_EQ(driver.trace(), "a=SIZE_MISMATCH b=OK");
      EXPECT_EQ(batch.commands()[0].found, value.size());
      EXPECT_EQ(second.text(), "hello");
      EXPECT_EQ(first.text(), GuardedTarget(5).text()) << "a value of another length was written";
      EXPECT_TRUE(first.intact() && second.intact());
    }
  }
}

TEST(Replies, AMismatchAboveTheDrainLimitPoisons) {
  GuardedTarget target(5);
  const auto batch = command(Verb::kGet, "k", target.bytes());
  ReplyDriver driver(100);
  driver.expect(*batch);
  EXPECT_FALSE(driver.deliver("$101\r\n"));
  EXPECT_EQ(driver.trace(), "k=SIZE_MISMATCH");
  EXPECT_EQ(batch->commands()[0].found, 101u);
}

TEST(Replies, ZeroLengthValues) {
  EXPECT_EQ(outcome(Verb::kGet, "$0\r\n\r\n", 0), "k=OK");
  EXPECT_EQ(outcome(Verb::kGet, "$0\r\n\r\n", 0, 1), "k=OK");
  EXPECT_EQ(outcome(Verb::kGet, "$1\r\nx\r\n", 0), "k=SIZE_MISMATCH");
}

TEST(Replies, PushesAndAttributesAreNoReplies) {
  const std::string extras =
      ">2\r\n+invalidate\r\n*1\r\n$5\r\nother\r\n|1\r\n$3\r\nttl\r\n:9\r\n>0\r\n|0\r\n";
  for (const std::size_t step : {std::size_t{1}, std::size_t{3}, SIZE_MAX}) {
    EXPECT_EQ(outcome(Verb::kGet, extras + "$5\r\nhello\r\n", 5, step), "k=OK");
    EXPECT_EQ(outcome(Verb::kSet, extras + "+OK\r\n" + extras, 5, step), "k=OK");
    EXPECT_EQ(outcome(Verb::kGet, extras + "$-1\r\n", 5, step), "k=MISS");
  }
  ReplyDriver idle;
  EXPECT_TRUE(idle.deliver(">1\r\n$5\r\nhello\r\n", 1)) << "a push may come at any time";
  ReplyDriver strict(100);
  EXPECT_FALSE(strict.deliver(">1\r\n$101\r\n"));
}

TEST(Replies, PingsAreAnsweredQuietly) {
  ReplyDriver driver;
  for (const std::string_view pong : {"+PONG\r\n", "$4\r\nPONG\r\n", "-LOADING wait\r\n"}) {
    driver.expect_ping();
    EXPECT_TRUE(driver.deliver(pong, 1));
  }
  EXPECT_EQ(driver.trace(), "");
  EXPECT_EQ(driver.replies().in_flight(), 0u);
}

TEST(Replies, PayloadIsPlannedStraightIntoItsTarget) {
  std::vector<std::byte> target(256 * kKiB);
  const auto batch = command(Verb::kGet, "k", target);
  ReplyDriver driver;
  driver.expect(*batch);
  ASSERT_LE(driver.replies().plan().back().iov_len, 4 * kKiB) << "little is copied behind a header";
  ASSERT_TRUE(driver.deliver("$262144\r\nab"));
  const auto pieces = driver.replies().plan();
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].iov_base, target.data() + 2);
  EXPECT_EQ(pieces[0].iov_len, target.size() - 2);
  EXPECT_EQ(driver.replies().owed(), target.size() - 2);
}

// A connection's life: every kind of command and reply, in order.
struct Script {
  static constexpr std::uint64_t kIdentity = 42;
  std::string large = std::string(40'000, '\0');
  GuardedTarget plain{5}, other{5}, big{40'000}, framed{11}, empty{0}, source{4};
  Batch reads{{.verb = Verb::kGet}};
  Batch frames{{.verb = Verb::kGet, .framed = true, .identity = kIdentity}};
  Batch writes{{.verb = Verb::kSet}};
  Batch probes{{.verb = Verb::kExists}};
  std::string stream;

  Script() {
    for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7);
    reads.add("plain", plain.bytes());
    reads.add("other", other.bytes());
    reads.add("missing", other.bytes());
    reads.add("big", big.bytes());
    frames.add("framed", framed.bytes());
    frames.add("empty", empty.bytes());
    writes.add("set", source.bytes());
    writes.add("full", source.bytes());
    probes.add("yes", {});
    probes.add("no", {});
    stream = "$5\r\nhello\r\n>1\r\n$3\r\nabc\r\n$7\r\nanother\r\n$-1\r\n$40000\r\n" + large +
             "\r\n" + framed_reply(frame_for("framed", "hello world", kIdentity), "hello world") +
             "|1\r\n+a\r\n$1\r\nb\r\n" + framed_reply(frame_for("empty", "", kIdentity), "") +
             "+PONG\r\n+OK\r\n-OOM full\r\n:1\r\n:0\r\n";
  }
  void expect(ReplyDriver& driver) {
    driver.expect(reads);
    driver.expect(frames);
    driver.expect_ping();
    driver.expect(writes);
    driver.expect(probes);
  }
  void check(const ReplyDriver& driver) {
    EXPECT_EQ(driver.trace(),
              "plain=OK other=SIZE_MISMATCH missing=MISS big=OK framed=OK empty=OK set=OK "
              "full=SERVER_ERROR(OOM full) yes=OK no=MISS");
    EXPECT_EQ(plain.text(), "hello");
    EXPECT_EQ(big.text(), large);
    EXPECT_EQ(framed.text(), "hello world");
    for (const GuardedTarget* target : {&plain, &other, &big, &framed, &empty, &source}) {
      EXPECT_TRUE(target->intact());
    }
  }
};

TEST(Replies, AnyChunkingGivesTheSameOutcomes) {
  for (const std::size_t step : {1u, 2u, 3u, 5u, 63u, 64u, 65u, 1000u, 4096u, 100000u}) {
    Script script;
    ReplyDriver driver;
    script.expect(driver);
    ASSERT_TRUE(driver.deliver(script.stream, step));
    script.check(driver);
  }
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    Script script;
    ReplyDriver driver;
    script.expect(driver);
    ASSERT_TRUE(driver.deliver(script.stream, [&] { return std::size_t{1} << (random() % 16); }));
    script.check(driver);
  }
}

TEST(Replies, ManySmallRepliesPassThroughTheScratch) {
  Batch batch({.verb = Verb::kDelete});
  std::string stream;
  for (std::size_t i = 0; i < Replies::kInFlightMax; ++i) {
    batch.add("k", {});
    stream += i % 7 == 0 ? "-ERR " + std::string(8000, 'e') + "\r\n" : ":1\r\n";
  }
  ReplyDriver driver;
  driver.expect(batch);
  EXPECT_TRUE(driver.replies().full());
  ASSERT_TRUE(driver.deliver(stream, 5000));
  EXPECT_TRUE(batch.finished());
  EXPECT_EQ(driver.replies().in_flight(), 0u);
}

TEST(Replies, AbandonGivesBackInOrderAndStartsAfresh) {
  GuardedTarget target(5);
  Batch batch({.verb = Verb::kGet});
  for (const char* key : {"a", "b", "c"}) batch.add(key, target.bytes());
  ReplyDriver driver;
  driver.expect_ping();
  driver.expect(batch);
  ASSERT_TRUE(driver.deliver("+PONG\r\n$5\r\nhello\r\n$5\r\nhe"));
  driver.abandon();
  EXPECT_EQ(driver.trace(), "a=OK b=UNAVAILABLE(abandoned) c=UNAVAILABLE(abandoned)");
  EXPECT_EQ(driver.replies().in_flight(), 0u);
  EXPECT_EQ(driver.replies().owed(), 0u);
  const auto again = command(Verb::kGet, "d", target.bytes());
  driver.expect(*again);
  ASSERT_TRUE(driver.deliver("$5\r\nworld\r\n", 1));
  EXPECT_EQ(target.text(), "world");
}

// --- Clusters and credentials ---

TEST(Replies, RedirectsAreForTheDispatcher) {
  for (const char* text :
       {"MOVED 3999 10.0.0.7:6381", "ASK 3999 10.0.0.7:6381", "TRYAGAIN later"}) {
    const std::string line(text);
    for (const std::size_t step : {std::size_t{1}, SIZE_MAX}) {
      EXPECT_EQ(outcome(Verb::kSet, "-" + line + "\r\n", 5, step), "k=UNAVAILABLE(" + line + ")")
          << "the driver settles it so, because here nobody sends it on";
    }
  }
  const auto first = command(Verb::kTouch, "a");
  const auto second = command(Verb::kTouch, "b");
  ReplyDriver driver;
  driver.expect(*first);
  driver.expect(*second);
  EXPECT_TRUE(driver.deliver("-MOVED 1 h:2\r\n:1\r\n")) << "the connection is well";
  EXPECT_EQ(driver.trace(), "a=UNAVAILABLE(MOVED 1 h:2) b=OK");
}

TEST(Replies, ARedirectOfAReleasedCommandIsForNobody) {
  const auto expired = command(Verb::kTouch, "a", {}, 100);
  ReplyDriver driver;
  driver.expect(*expired);
  driver.replies().release(100);
  EXPECT_TRUE(driver.deliver("-MOVED 1 h:2\r\n"));
  EXPECT_EQ(driver.trace(), "a=TIMEOUT");
  EXPECT_EQ(driver.replies().overdue(), 0u);
}

TEST(Replies, AnAskingThatIsRefusedHarmsNobody) {
  const auto asked = command(Verb::kTouch, "a");
  ReplyDriver driver;
  driver.expect_ping();  // the slot of an ASKING
  driver.expect(*asked);
  EXPECT_TRUE(driver.deliver("-ERR unknown command 'ASKING'\r\n-MOVED 1 h:2\r\n"));
  EXPECT_EQ(driver.trace(), "a=UNAVAILABLE(MOVED 1 h:2)");
}

TEST(Replies, NewCredentialsThatAreRefusedEndTheConnection) {
  const auto waiting = command(Verb::kTouch, "a");
  ReplyDriver driver;
  driver.expect_ping();  // the slot of an AUTH
  driver.expect(*waiting);
  EXPECT_FALSE(driver.deliver("-WRONGPASS invalid username-password pair\r\n:1\r\n"));
  EXPECT_EQ(driver.trace(), "") << "its commands go to another connection";
  driver.abandon();
  EXPECT_EQ(driver.trace(), "a=UNAVAILABLE(abandoned)");
}

}  // namespace
}  // namespace kvferry::redis
