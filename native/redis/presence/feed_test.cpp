#include "redis/presence/feed.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/test_names.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kSilence = 2 * kSecond;

// "CLIENT TRACKING ON | PING": the commands in some bytes.
std::string show(std::string_view bytes) {
  resp::ValueReader reader;
  reader.feed(as_bytes(bytes));
  std::string text;
  for (resp::Value value; reader.next(value) == resp::ValueReader::State::kValue;) {
    if (!text.empty()) text += " | ";
    for (std::size_t i = 0; i < value.items.size(); ++i)
      text += (i > 0 ? " " : "") + value.items[i].text;
  }
  return text;
}

class PresenceFeedTest : public testing::Test {
 protected:
  void open(bool clustered, std::uint64_t load_max = 0) {
    state_ =
        std::make_unique<PresenceState>("k*:", clustered, PresenceLimits{}, PresenceState::Seed{});
    node_ = state_->join();
    feed_ = std::make_unique<PresenceFeed>(*state_, node_, clustered, kSilence, now_, load_max);
  }
  std::string next() { return show(feed_->next(now_)); }
  // "", or what is wrong.
  std::string receive(std::string_view stream) {
    resp::ValueReader reader;
    reader.feed(as_bytes(stream));
    for (resp::Value value; reader.next(value) == resp::ValueReader::State::kValue;) {
      const Outcome taken = feed_->receive(value, now_);
      if (!taken) return std::string(name(taken.error().code)) + ": " + taken.error().context;
    }
    return "";
  }
  Presence look_up(std::string_view key) {
    Presence answer{};
    state_->look_up({&key, 1}, {&answer, 1});
    return answer;
  }

  Nanos now_ = 100 * kSecond;
  PresenceState::NodeId node_ = 0;
  std::unique_ptr<PresenceState> state_;
  std::unique_ptr<PresenceFeed> feed_;
};

TEST_F(PresenceFeedTest, WhereChangesTimesViewsAreTooManyItKnowsAndAsksNothing) {
  open(false, 10);
  const std::string one = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$4\r\nk*:b\r\n";
  EXPECT_EQ(next(), "CLIENT TRACKING ON BCAST PREFIX k*:");
  EXPECT_EQ(receive("+OK\r\n"), "");
  EXPECT_EQ(next(), "PING | INFO clients | SCAN 0 MATCH k\\*:* COUNT 1000");
  EXPECT_EQ(receive("+PONG\r\n$18\r\ntracking_clients:6\r\n*2\r\n$1\r\n0\r\n*0\r\n"), "");
  EXPECT_EQ(look_up("k*:a"), Presence::kAbsent);
  EXPECT_EQ(receive(one + one), "");
  now_ += kSecond;
  EXPECT_EQ(next(), "PING") << "2 changes a second times 6 views: nobody is asked";
  EXPECT_TRUE(feed_->load().too_much());
  EXPECT_EQ(look_up("k*:a"), Presence::kUnknown);
  EXPECT_EQ(state_->stats().changing, 0u);
  for (int second = 0; second < 10; ++second) {  // one change a second: more than half of the limit
    EXPECT_EQ(receive("+PONG\r\n" + one), "");
    now_ += kSecond;
    const std::string asked = next();
    EXPECT_TRUE(asked == "PING" || asked == "PING | INFO clients") << asked;
    if (asked != "PING") {
      EXPECT_EQ(receive("+PONG\r\n$18\r\ntracking_clients:6\r\n" + one), "");
      now_ += kSecond;
      EXPECT_EQ(next(), "PING");
    }
  }
  EXPECT_TRUE(feed_->load().too_much());
  int calm = 0;
  for (; calm < 20 && feed_->load().too_much(); ++calm) {
    EXPECT_EQ(receive("+PONG\r\n"), "");
    now_ += kSecond;
    if (next().find("INFO") == std::string::npos) continue;
    EXPECT_EQ(receive("+PONG\r\n-NOPERM no\r\n"), "") << "who may not ask counts himself";
    EXPECT_EQ(feed_->load().views(), 1u);
    now_ += kSecond;
    next();
  }
  EXPECT_GE(calm, 3) << "it was calm for a while first";
  EXPECT_EQ(look_up("k*:a"), Presence::kUnknown) << "before the next snapshot";
}

TEST_F(PresenceFeedTest, AnnouncementsSnapshotQuestionsBeats) {
  open(false);
  EXPECT_EQ(next(), "CLIENT TRACKING ON BCAST PREFIX k*:");
  EXPECT_EQ(next(), "");
  EXPECT_EQ(receive("+OK\r\n"), "");
  EXPECT_EQ(next(), "PING | SCAN 0 MATCH k\\*:* COUNT 1000");
  EXPECT_EQ(receive("+PONG\r\n*2\r\n$2\r\n17\r\n*1\r\n$4\r\nk*:a\r\n"), "");
  EXPECT_EQ(next(), "SCAN 17 MATCH k\\*:* COUNT 1000");
  EXPECT_EQ(look_up("k*:a"), Presence::kUnknown);
  EXPECT_EQ(receive("*2\r\n$1\r\n0\r\n*0\r\n"), "");
  EXPECT_EQ(look_up("k*:a"), Presence::kProbable);
  EXPECT_EQ(look_up("k*:b"), Presence::kAbsent);
  EXPECT_EQ(next(), "");
  EXPECT_EQ(receive(">2\r\n$10\r\ninvalidate\r\n*2\r\n$4\r\nk*:b\r\n$4\r\nk*:a\r\n"), "");
  EXPECT_EQ(next(), "EXISTS k*:b | EXISTS k*:a");
  EXPECT_EQ(receive(":1\r\n>2\r\n$7\r\nmessage\r\n$1\r\nx\r\n:0\r\n"), "");
  EXPECT_EQ(look_up("k*:b"), Presence::kProbable);
  EXPECT_EQ(look_up("k*:a"), Presence::kAbsent);
  EXPECT_EQ(feed_->wake_at(), now_ + PresenceFeed::kBeat);
  now_ += PresenceFeed::kBeat;
  EXPECT_EQ(next(), "PING");
  EXPECT_FALSE(feed_->silent(now_ + kSilence));
  EXPECT_TRUE(feed_->silent(now_ + kSilence + 1));
  EXPECT_EQ(feed_->wake_at(), now_ + kSilence + 1);
}

TEST_F(PresenceFeedTest, AFlushIsReadAgainButNotAtOnceTwice) {
  open(false);
  next();
  receive("+OK\r\n");
  next();
  receive("+PONG\r\n*2\r\n$1\r\n0\r\n*0\r\n");
  EXPECT_EQ(receive(">2\r\n$10\r\ninvalidate\r\n_\r\n"), "");
  EXPECT_EQ(look_up("k*:a"), Presence::kUnknown);
  EXPECT_EQ(next(), "");
  EXPECT_EQ(feed_->wake_at(), now_ + PresenceFeed::kSnapshotGap);
  now_ += PresenceFeed::kSnapshotGap;
  EXPECT_EQ(next(), "SCAN 0 MATCH k\\*:* COUNT 1000");
}

TEST_F(PresenceFeedTest, InAClusterTheNodeSaysWhatItServes) {
  open(true);
  const std::string slot = std::to_string(key_slot("k*:a"));
  const std::string census = "id h:1@2 myself,master - 0 0 1 connected " + slot + "\n";
  const auto beat = [&](const std::string& nodes, const std::string& health) {
    const std::string info = "cluster_state:" + health + "\r\n";
    return "$" + std::to_string(info.size()) + "\r\n" + info + "\r\n$" +
           std::to_string(nodes.size()) + "\r\n" + nodes + "\r\n";
  };
  next();
  receive("+OK\r\n");
  EXPECT_EQ(next(), "CLUSTER INFO | CLUSTER NODES");
  EXPECT_EQ(receive(beat(census, "ok")), "");
  EXPECT_EQ(next(), "SCAN 0 MATCH k\\*:* COUNT 1000");
  EXPECT_EQ(receive("*2\r\n$1\r\n0\r\n*0\r\n"), "");
  EXPECT_EQ(look_up("k*:a"), Presence::kUnknown);  // the slot may have left meanwhile
  EXPECT_EQ(next(), "CLUSTER INFO | CLUSTER NODES");
  EXPECT_EQ(receive(beat(census, "ok")), "");
  EXPECT_EQ(look_up("k*:a"), Presence::kAbsent);
  state_->wrote("k*:a");
  EXPECT_EQ(next(), "EXISTS k*:a");
  EXPECT_EQ(receive("-MOVED 1 h:2\r\n"), "");
  EXPECT_EQ(look_up("k*:a"), Presence::kUnknown);
  EXPECT_LT(feed_->wake_at(), now_ + PresenceFeed::kBeat);  // it is asked again soon
  now_ = feed_->wake_at();
  EXPECT_EQ(next(), "CLUSTER INFO | CLUSTER NODES");
  EXPECT_EQ(receive(beat(census, "fail")), "");
  EXPECT_FALSE(state_->wants_snapshot(node_));
}

TEST_F(PresenceFeedTest, Refusals) {
  open(false);
  next();
  EXPECT_EQ(receive("-ERR unknown subcommand\r\n"), "server: ERR unknown subcommand");
  open(false);
  next();
  receive("+OK\r\n");
  next();
  EXPECT_EQ(receive("+PONG\r\n-NOPERM no scan\r\n"), "server: NOPERM no scan");
  for (const char* scan :
       {"*2\r\n*0\r\n*0\r\n", "*1\r\n$1\r\n0\r\n", ":1\r\n", "*2\r\n$0\r\n\r\n*0\r\n"}) {
    open(false);
    next();
    receive("+OK\r\n");
    next();
    EXPECT_EQ(receive("+PONG\r\n" + std::string(scan)),
              "protocol: SCAN: an answer that makes no sense");
  }
  open(false);
  EXPECT_EQ(receive("+OK\r\n"), "protocol: a reply that nobody asked for");
  EXPECT_EQ(receive(">2\r\n$10\r\ninvalidate\r\n:1\r\n"),
            "protocol: invalidate: an answer that makes no sense");
  EXPECT_EQ(receive(">1\r\n$10\r\ninvalidate\r\n"),
            "protocol: invalidate: an answer that makes no sense");
}

TEST(EscapeGlob, EveryCharacterStandsForItself) {
  EXPECT_EQ(escape_glob("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\");
  EXPECT_EQ(escape_glob("kv:^-{x}"), "kv:^-{x}");
}

}  // namespace
}  // namespace kvferry::redis
