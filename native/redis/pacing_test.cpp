// Pacing without a socket: what it puts into the outbox is read as text, and answers are typed in.
#include "redis/pacing.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/router_driver.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kNow = 1000 * kSecond;

Config config(std::size_t window_bytes) {
  Config made;
  made.endpoint = {"one", 1, {}};
  made.connections = 2;
  made.window_bytes = window_bytes;
  return made;
}

// A connection that is up, whose socket is a string.
struct Paced final : private PacingSink, private ReplySink {
  explicit Paced(Pacing::Role role = Pacing::Role::kData, std::size_t window_bytes = 1000)
      : Paced(std::make_shared<RouterDriver>(config(window_bytes)), role) {
    server.on_up(false, {});
  }
  // One more to the server of another one.
  explicit Paced(std::shared_ptr<RouterDriver> of, Pacing::Role role = Pacing::Role::kData)
      : life(std::move(of)),
        driver(*life),
        server(*driver.router().nodes().front().server),
        replies(*this, 1 << 20, 1 << 20),
        liveness(kSecond, kSecond),
        pacing(server, role, 0, outbox, replies, liveness, *this) {
    server.on_up(true, {});
  }

  // `count` keys with values of `size` bytes.
  std::shared_ptr<Batch> submit(Verb verb, std::size_t count, std::size_t size,
                                const std::string& prefix = "k") {
    auto batch = std::make_shared<Batch>(Batch::Options{.verb = verb});
    for (std::size_t index = 0; index < count; ++index) {
      values.push_back(std::make_unique<std::string>(size, 'v'));
      batch->add(prefix + std::to_string(index),
                 std::as_writable_bytes(std::span(*values.back())).first(size));
    }
    batches.push_back(batch);
    EXPECT_TRUE(driver.router().submit(batch));
    return batch;
  }
  // What is sent now.
  std::string pump() {
    wire.clear();
    alive = pacing.pump(kNow);
    if (alive && !outbox.empty()) send(kNow);
    return wire;
  }
  // How often the word is in what is sent now.
  std::size_t pump_count(const std::string& word) {
    const std::string text = pump();
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++count;
    return count;
  }
  void answer(std::string_view text) {
    while (!text.empty()) {
      std::size_t moved = 0;
      for (const iovec& piece : replies.plan()) {
        const std::size_t part = std::min(piece.iov_len, text.size() - moved);
        std::memcpy(piece.iov_base, text.data() + moved, part);
        moved += part;
      }
      ASSERT_TRUE(replies.received(moved));
      text.remove_prefix(moved);
    }
  }

  const std::shared_ptr<RouterDriver> life;
  RouterDriver& driver;
  Server& server;
  Outbox outbox;
  Replies replies;
  Liveness liveness;
  Pacing pacing;
  std::vector<std::unique_ptr<std::string>> values;
  std::vector<std::shared_ptr<Batch>> batches;
  std::string wire;
  bool has_room = true;
  bool ends = false;
  bool alive = true;

 private:
  bool send(Nanos) override {
    while (has_room && !outbox.empty()) {
      std::size_t size = 0;
      for (const iovec& piece : outbox.pieces()) {
        wire.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
        size += piece.iov_len;
      }
      outbox.sent(size);
    }
    return !ends;
  }
  void settled(Work work, Status status, Reason why) override {
    EXPECT_TRUE(pacing.answered(work));
    if (status == Status::kOk) pacing.completed(work, kNow);
    server.settle(work, status, why);
  }
  void redirected(Work, std::string_view) override {}
};

const std::string kValue = "$600\r\n" + std::string(600, 'v') + "\r\n";

TEST(Pacing, AWindowOfValuesIsInFlight) {
  Paced one;
  one.submit(Verb::kGet, 5, 600);
  EXPECT_EQ(one.pump_count("GET"), 2u) << "the second one fills the window of 1,000 bytes";
  EXPECT_EQ(one.pump_count("GET"), 0u);
  one.answer(kValue);
  EXPECT_EQ(one.pump_count("GET"), 1u);
  one.answer(kValue + kValue);
  EXPECT_EQ(one.pump_count("GET"), 2u);
  one.answer(kValue + kValue);
  EXPECT_EQ(one.pump_count("GET"), 0u);
  EXPECT_EQ(statuses(*one.batches[0]), "OK OK OK OK OK");
  EXPECT_FALSE(one.pacing.streams()) << "its place is another's";
}

TEST(Pacing, FarAwayWhoStreamsIsWokenForMore) {
  // It was sent with the next answer, a round trip later.
  Paced one(Pacing::Role::kData, 0);
  one.server.note_round_trip(kSecond, false);
  one.submit(Verb::kGet, 2, 600);
  EXPECT_EQ(one.pump_count("GET"), 2u);
  const int before = one.driver.wake_ups();
  one.submit(Verb::kGet, 3, 600, "more");
  EXPECT_GT(one.driver.wake_ups(), before);
  EXPECT_EQ(one.pump_count("GET"), 3u);
}

TEST(Pacing, FarAwayItTakesItsShareAndLeavesTheOthersTheirs) {
  // Whoever woke first took all that a round trip holds, and TCP carried it over one connection.
  Paced one(Pacing::Role::kData, 0);
  one.server.note_round_trip(kSecond, false);
  Paced two(one.life);
  one.submit(Verb::kGet, 6, 600);
  EXPECT_EQ(one.pump_count("GET"), 3u);
  EXPECT_EQ(one.pump_count("GET"), 0u) << "however often it looks";
  EXPECT_EQ(two.pump_count("GET"), 3u);
  one.answer(kValue);
  one.submit(Verb::kGet, 3, 600, "more");
  EXPECT_EQ(two.pump_count("GET"), 1u) << "of eight in all, four each";
  EXPECT_EQ(one.pump_count("GET"), 2u);
}

TEST(Pacing, FarAwaySetsAreSharedToo) {
  Paced one(Pacing::Role::kData, 0);
  one.server.note_round_trip(kSecond, false);
  const Paced two(one.life);
  one.submit(Verb::kSet, 6, 600);
  EXPECT_EQ(one.pump_count("SET"), 3u);
}

TEST(Pacing, NearWhoeverWakesFirstTakesWhatFillsItsWindow) {
  Paced one(Pacing::Role::kData, 0);
  one.server.note_round_trip(kFarAway - 1, false);
  const Paced two(one.life);
  one.submit(Verb::kGet, 6, 600);
  EXPECT_EQ(one.pump_count("GET"), 6u);
}

TEST(Pacing, WhatHasComeOfAValueMakesRoom) {
  Paced one;
  one.submit(Verb::kGet, 5, 600);
  EXPECT_EQ(one.pump_count("GET"), 2u);
  one.answer(kValue.substr(0, 300));
  EXPECT_EQ(one.pump_count("GET"), 1u) << "less than the window is on its way";
}

TEST(Pacing, NearTheNextValueIsAskedForWhenTheFirstBytesOfOneHaveCome) {
  // It was asked for 512 KiB before the end, and the server slept in between.
  Paced one(Pacing::Role::kData, 0);
  one.server.note_round_trip(100 * kMicro, false);
  const std::string half(384 * kKiB, 'v');
  one.submit(Verb::kGet, 3, 2 * half.size());
  EXPECT_EQ(one.pump_count("GET"), 1u);
  one.answer("$" + std::to_string(2 * half.size()) + "\r\nv");
  EXPECT_EQ(one.pump_count("GET"), 1u) << "one behind the one that comes";
  one.answer(half);
  EXPECT_EQ(one.pump_count("GET"), 0u) << "and not more";
  one.answer(half.substr(1) + "\r\n");
  EXPECT_EQ(one.pump_count("GET"), 0u) << "nothing of the second has come";
}

TEST(Pacing, SmallCommandsHaveALaneOfTheirOwn) {
  Paced data;
  data.submit(Verb::kExists, 3, 0);
  EXPECT_EQ(data.pump(), "");
  data.server.on_lost(false, false, "it ended", kNow);
  EXPECT_EQ(data.pump_count("EXISTS"), 3u) << "while that is down the others serve it";
  Paced small(Pacing::Role::kSmall);
  small.submit(Verb::kGet, 1, 600);
  small.submit(Verb::kExists, 3, 0);
  EXPECT_EQ(small.pump_count("EXISTS"), 3u);
  EXPECT_EQ(small.server.waiting(), 1u) << "and never a value";
}

TEST(Pacing, TheHeadOfTheNextSetLeavesEarlyAndNothingComesBetween) {
  Paced one;
  one.submit(Verb::kSet, 6, 2000);
  const std::string sent = one.pump();
  EXPECT_TRUE(sent.ends_with("$2000\r\n")) << "two heads and one value";
  EXPECT_EQ(one.replies.in_flight(), 2u);
  EXPECT_TRUE(one.pacing.holds_value());
  one.server.on_lost(false, false, "it ended", kNow);
  one.submit(Verb::kExists, 1, 0);
  EXPECT_EQ(one.pump(), "") << "it would be taken for a part of the value";
  one.answer("+OK\r\n");
  EXPECT_TRUE(one.pump().starts_with(std::string(2000, 'v'))) << "the value comes next";
}

TEST(Pacing, AnotherSetFollowsOneMebibyteAndOnlyItsHeadWhatIsLonger) {
  // One of 512 KiB and more was in flight alone, and the server slept until the next.
  for (const auto& [size, sets] : {std::pair(256 * kKiB, 5u), {512 * kKiB, 3u}, {kMiB, 2u}}) {
    Paced some(Pacing::Role::kData, 0);
    some.submit(Verb::kSet, 8, size);
    EXPECT_EQ(some.pump_count("SET"), sets) << size;
    EXPECT_FALSE(some.pacing.holds_value());
    some.answer("+OK\r\n");
    EXPECT_EQ(some.pump_count("SET"), 1u) << size;
  }
  Paced large(Pacing::Role::kData, 0);
  large.submit(Verb::kSet, 6, Outbox::kLargeBytes + 1);
  EXPECT_EQ(large.pump_count("SET"), 2u) << "one, and the head of the next";
  EXPECT_TRUE(large.pacing.holds_value());
}

TEST(Pacing, NearTheEndNoHeadLeavesEarly) {
  Paced one;
  one.submit(Verb::kSet, 2, 2000);
  EXPECT_EQ(one.pump_count("SET"), 1u) << "another connection may be free sooner";
  EXPECT_FALSE(one.pacing.holds_value());
}

TEST(Pacing, WhatWasGivenUpIsNotSent) {
  Paced one;
  const auto batch = one.submit(Verb::kGet, 2, 600);
  batch->cancel();
  EXPECT_EQ(one.pump(), "");
  EXPECT_EQ(statuses(*batch), "CANCELLED CANCELLED");
}

TEST(Pacing, TakesNothingWhileItIsPaused) {
  Paced one;
  one.submit(Verb::kGet, 2, 600);
  one.pacing.pause();
  EXPECT_EQ(one.pump(), "");
  EXPECT_TRUE(one.pacing.resume());
  EXPECT_FALSE(one.pacing.resume());
  EXPECT_EQ(one.pump_count("GET"), 2u);
}

TEST(Pacing, StopsWhereTheConnectionEnds) {
  Paced one(Pacing::Role::kSmall);
  one.submit(Verb::kExists, 600, 0, std::string(200, 'k'));
  one.ends = true;
  one.pump();
  EXPECT_FALSE(one.alive) << "the outbox was full, and could not be sent";
  EXPECT_GT(one.server.waiting(), 0u);
}

TEST(Pacing, ADropKeepsNoValueAndGivesThePlaceBack) {
  Paced one;
  one.submit(Verb::kSet, 6, 2000);
  one.pump();
  one.pacing.drop();
  EXPECT_FALSE(one.pacing.holds_value());
  one.pacing.leave_stream(kNow);
  EXPECT_FALSE(one.pacing.streams());
}

}  // namespace
}  // namespace kvferry::redis
