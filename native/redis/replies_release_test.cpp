// Replies when commands are withdrawn: release() at every point of a reply, and framed values.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "fuzz/reply_driver.hpp"
#include "fuzz/test_framed.hpp"

namespace kvferry::redis {
namespace {

// Three reads in flight; the middle one is withdrawn after `position` bytes of the stream.
void withdraw_at(std::size_t position, bool framed, bool expired, std::size_t step) {
  SCOPED_TRACE(testing::Message() << "at " << position << " framed " << framed << " expired "
                                  << expired << " step " << step);
  const std::string before = "first";
  const std::string value = "0123456789abcdefghij";
  const std::string after = "third";
  const auto reply = [&](std::string_view key, const std::string& payload) {
    return framed ? framed_reply(frame_for(key, payload, kIdentity), payload)
                  : "$" + std::to_string(payload.size()) + "\r\n" + payload + "\r\n";
  };
  GuardedTarget first(before.size());
  GuardedTarget target(value.size());
  GuardedTarget last(after.size());
  const Batch::Options lasting{.verb = Verb::kGet, .framed = framed, .identity = kIdentity};
  Batch::Options options = lasting;
  if (expired) options.deadline = 1000;
  Batch outer(lasting);
  Batch inner(options);
  Batch third(lasting);
  outer.add("a", first.bytes());
  inner.add("b", target.bytes());
  third.add("c", last.bytes());
  ReplyDriver driver;
  for (Batch* batch : {&outer, &inner, &third}) driver.expect(*batch);

  const std::string stream = reply("a", before) + reply("b", value) + reply("c", after);
  ASSERT_TRUE(driver.deliver(std::string_view(stream).substr(0, position), step));
  if (!expired) inner.cancel();
  EXPECT_TRUE(driver.replies().release(999));
  if (expired) {
    EXPECT_EQ(inner.finished(), position >= stream.size() - reply("c", after).size());
    EXPECT_TRUE(driver.replies().release(1000));
  }
  EXPECT_TRUE(inner.finished()) << "the caller has its memory back";
  const std::string frozen = target.text();
  ASSERT_TRUE(driver.deliver(std::string_view(stream).substr(position), step));

  const bool was_complete = position >= stream.size() - reply("c", after).size();
  const Status expected = was_complete ? Status::kOk
                          : expired    ? Status::kTimeout
                                       : Status::kCancelled;
  EXPECT_EQ(inner.commands()[0].status, expected);
  EXPECT_EQ(target.text(), was_complete ? value : frozen);
  EXPECT_EQ(outer.commands()[0].status, Status::kOk);
  EXPECT_EQ(third.commands()[0].status, Status::kOk);
  EXPECT_EQ(first.text() + last.text(), before + after);
  EXPECT_TRUE(first.intact() && target.intact() && last.intact());
  EXPECT_EQ(driver.replies().in_flight(), 0u);
}

TEST(RepliesRelease, AtEveryPointOfTheStream) {
  for (const bool framed : {false, true}) {
    const std::size_t length = framed ? 3 * (64 + 7) + 30 : 3 * 6 + 1 + 30;
    for (std::size_t position = 0; position <= length; ++position) {
      for (const bool expired : {false, true}) {
        withdraw_at(position, framed, expired, 1);
        withdraw_at(position, framed, expired, SIZE_MAX);
      }
    }
  }
}

TEST(RepliesRelease, SaysWhenMoreIsOwedThanMayBeDrained) {
  GuardedTarget target(101);
  Batch batch({.verb = Verb::kGet});
  batch.add("k", target.bytes());
  ReplyDriver driver(100);
  driver.expect(batch);
  EXPECT_TRUE(driver.replies().release(0)) << "nothing was withdrawn";
  batch.cancel();
  EXPECT_FALSE(driver.replies().release(0));
  EXPECT_TRUE(batch.finished());
  EXPECT_TRUE(driver.replies().release(0)) << "it settles once";
}

TEST(RepliesRelease, OweNothingForWrites) {
  GuardedTarget source(5);
  Batch writes({.verb = Verb::kSet});
  Batch probes({.verb = Verb::kTouch});
  writes.add("w", source.bytes());
  probes.add("p", {});
  ReplyDriver driver;
  driver.expect(writes);
  driver.expect(probes);
  probes.cancel();
  EXPECT_TRUE(driver.replies().release(0));
  writes.cancel();
  EXPECT_TRUE(driver.replies().release(0));
  EXPECT_TRUE(driver.deliver("+OK\r\n:1\r\n")) << "their replies are of no interest";
  EXPECT_EQ(driver.trace(), "p=CANCELLED w=CANCELLED");
}

TEST(RepliesRelease, AReleasedCommandMayFailOrMissUnseen) {
  for (const std::string_view reply : {"$-1\r\n", "-ERR no\r\n", "!6\r\nERR no\r\n", "_\r\n",
                                       "$3\r\nabc\r\n", "$12\r\nanother size\r\n"}) {
    GuardedTarget target(5);
    Batch withdrawn({.verb = Verb::kGet});
    Batch next({.verb = Verb::kGet});
    withdrawn.add("k", target.bytes());
    next.add("n", target.bytes());
    ReplyDriver driver;
    driver.expect(withdrawn);
    driver.expect(next);
    withdrawn.cancel();
    EXPECT_TRUE(driver.replies().release(0));
    ASSERT_TRUE(driver.deliver(std::string(reply) + "$5\r\nhello\r\n", 1)) << reply;
    EXPECT_EQ(driver.trace(), "k=CANCELLED n=OK") << reply;
    EXPECT_EQ(target.text(), "hello");
  }
}

TEST(RepliesRelease, KnowsTheEarliestDeadline) {
  ReplyDriver driver;
  EXPECT_EQ(driver.replies().next_deadline(), kNever);
  Batch late({.verb = Verb::kTouch, .deadline = 500});
  Batch early({.verb = Verb::kTouch, .deadline = 100});
  late.add("l", {});
  early.add("e", {});
  driver.expect_ping();
  driver.expect(late);
  driver.expect(early);
  EXPECT_EQ(driver.replies().next_deadline(), 100);
  EXPECT_TRUE(driver.replies().release(100));
  EXPECT_EQ(driver.replies().next_deadline(), 500);
}

// --- Framed values. ---

constexpr std::string_view kPayload = "seventeen bytes..";

std::string outcome(const std::string& reply, std::size_t step = SIZE_MAX,
                    std::size_t drain_bytes_max = 64 * kKiB) {
  return framed_outcome(kPayload, reply, step, drain_bytes_max);
}

TEST(RepliesFramed, EveryFaultIsNamed) {
  using Change = std::function<void(codec::Frame&)>;
  const std::vector<std::pair<std::string, Change>> cases = {
      {"OK", [](codec::Frame&) {}},
      {"CORRUPT(codec)", [](codec::Frame& f) { f.codec = static_cast<codec::Codec>(9); }},
      {"CORRUPT(flags)", [](codec::Frame& f) { f.flags = 1; }},
      {"CORRUPT(shape)", [](codec::Frame& f) { f.stripe_index = 1; }},
      {"CORRUPT(shape)", [](codec::Frame& f) { --f.payload_size_bytes; }},
      {"CORRUPT(shape)", [](codec::Frame& f) { --f.original_size_bytes; }},
      {"CORRUPT(shape)",
       [](codec::Frame& f) { f.payload_size_bytes = f.original_size_bytes = 18; }},
      {"CORRUPT(identity)", [](codec::Frame& f) { ++f.identity; }},
      {"SIZE_MISMATCH(size)",
       [](codec::Frame& f) { f.stripe_count = 2, f.original_size_bytes = 34; }},
      {"CORRUPT(payload checksum)", [](codec::Frame& f) { ++f.payload_checksum; }},
  };
  for (const auto& [expected, change] : cases) {
    codec::Frame frame = frame_for("k", kPayload, kIdentity);
    change(frame);
    for (const std::size_t step : {std::size_t{1}, std::size_t{64}, std::size_t{70}, SIZE_MAX}) {
      EXPECT_EQ(outcome(framed_reply(frame, kPayload), step), "k=" + expected + " n=OK");
    }
  }
}

TEST(RepliesFramed, AValueOfAnotherKeyPoisonsTheStream) {
  codec::Frame other_key = frame_for("j", kPayload, kIdentity);
  codec::Frame other_stripe = frame_for("k", kPayload, kIdentity);
  other_stripe.stripe_count = 2;
  other_stripe.payload_size_bytes = kPayload.size() - 1;
  for (const std::size_t step : {std::size_t{1}, std::size_t{70}, SIZE_MAX}) {
    EXPECT_EQ(outcome(framed_reply(other_key, kPayload), step), "k=CORRUPT(key)!");
    const std::string cut = framed_reply(other_stripe, kPayload.substr(1));
    EXPECT_EQ(outcome(cut, step), "k=CORRUPT(stripe)!");
  }
}

TEST(RepliesFramed, EveryFlippedBitIsCaught) {
  const std::string good = framed_reply(frame_for("k", kPayload, kIdentity), kPayload);
  const std::size_t begin = good.find("\r\n") + 2;
  for (std::size_t at = begin; at < good.size() - 2; ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    EXPECT_TRUE(outcome(bad).starts_with("k=CORRUPT(")) << at;
    EXPECT_TRUE(outcome(bad, 9).ends_with(" n=OK")) << at;
  }
}

TEST(RepliesFramed, OtherLengthsAreDrained) {
  for (const std::string payload : {"", "sixteen bytes...", "eighteen bytes....",
                                    "a payload that is far longer than the reader's buffer"}) {
    const std::string reply = framed_reply(frame_for("k", payload, kIdentity), payload);
    for (const std::size_t step : {std::size_t{1}, std::size_t{66}, SIZE_MAX}) {
      EXPECT_EQ(outcome(reply, step), "k=SIZE_MISMATCH(size) n=OK") << payload;
    }
  }
  const std::string longer =
      framed_reply(frame_for("k", std::string(200, 'x'), kIdentity), std::string(200, 'x'));
  EXPECT_EQ(outcome(longer, SIZE_MAX, 100), "k=SIZE_MISMATCH(size)!");
  EXPECT_EQ(outcome(longer, 1, 100), "k=SIZE_MISMATCH(size)!");
}

TEST(RepliesFramed, ShortAndForeignValuesAreCorrupt) {
  for (const std::size_t size : {0u, 1u, 17u, 63u}) {
    const std::string reply = "$" + std::to_string(size) + "\r\n" + std::string(size, 'v') + "\r\n";
    EXPECT_EQ(outcome(reply), "k=CORRUPT(a value without a frame) n=OK");
    EXPECT_EQ(outcome(reply, 1), "k=CORRUPT(a value without a frame) n=OK");
  }
  EXPECT_EQ(outcome("$81\r\n" + std::string(81, 'v') + "\r\n"), "k=CORRUPT(magic) n=OK");
  EXPECT_EQ(outcome("$-1\r\n"), "k=MISS n=OK");
}

}  // namespace
}  // namespace kvferry::redis
