// Replies, where values come encoded.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "codec/coded.hpp"
#include "codec/test_numbers.hpp"
#include "fuzz/reply_driver.hpp"
#include "fuzz/test_framed.hpp"
#include "redis/replies.hpp"

namespace kvferry::redis {
namespace {

struct Coded {
  codec::Frame frame;
  std::string payload;
};

Coded coded(std::string_view key, const std::vector<std::byte>& content) {
  Coded out{frame_for(key, as_text(content), kIdentity), {}};
  out.payload.resize(codec::coded_size_max(content.size()));
  out.payload.resize(codec::encode_stripe(codec::Codec::kSplit12, content,
                                          std::as_writable_bytes(std::span(out.payload))));
  out.frame.payload_size_bytes = out.payload.size();
  out.frame.codec = codec::Codec::kSplit12;
  return out;
}

std::string outcome(const std::vector<std::byte>& content, const std::string& reply,
                    std::size_t step = SIZE_MAX, std::size_t drain_bytes_max = 1 * kMiB) {
  return framed_outcome(as_text(content), reply, step, drain_bytes_max);
}

TEST(RepliesCoded, AValueIsTheSameHoweverItIsCut) {
  for (const std::size_t count : {128u, 5000u, 32'768u, 100'032u}) {
    const auto content = codec::normal_numbers(count, count);
    const Coded value = coded("k", content);
    ASSERT_FALSE(value.payload.empty());
    for (const std::size_t step :
         {std::size_t{1}, std::size_t{100}, std::size_t{70'000}, SIZE_MAX}) {
      EXPECT_EQ(outcome(content, framed_reply(value.frame, value.payload), step), "k=OK n=OK");
    }
  }
}

TEST(RepliesCoded, DamageIsAMissAndTheNextReplyIsFound) {
  const auto content = codec::normal_numbers(20'000, 1);
  const Coded value = coded("k", content);
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    std::string bad = value.payload;
    const std::size_t where = round < 40 ? static_cast<std::size_t>(round) : random() % bad.size();
    bad[where] = static_cast<char>(bad[where] ^ (1 << random() % 8));
    const std::string told = outcome(content, framed_reply(value.frame, bad), 1 + random() % 9000);
    // A bit of the table that no number uses changes nothing.
    const bool unused = where >= 8 && where < 24;
    EXPECT_TRUE(told == "k=CORRUPT(payload checksum) n=OK" || (unused && told == "k=OK n=OK"))
        << told << " at " << where;
  }
}

TEST(RepliesCoded, DamageBeforeALongRestEndsTheConnection) {
  const auto content = codec::normal_numbers(100'000, 1);
  const Coded value = coded("k", content);
  std::string bad = value.payload;
  bad[3] = 9;
  EXPECT_EQ(outcome(content, framed_reply(value.frame, bad), 1000, 10'000),
            "k=CORRUPT(payload checksum)!");
}

TEST(RepliesCoded, AShorterPayloadThanSaidIsAMiss) {
  const auto content = codec::normal_numbers(1000, 1);
  for (const std::size_t size : {std::size_t{0}, std::size_t{3}, std::size_t{500}}) {
    Coded value = coded("k", content);
    value.payload.resize(size);
    value.frame.payload_size_bytes = size;
    // As if somebody had summed what is there: nothing.
    value.frame.payload_checksum = codec::xxh3_64({});
    EXPECT_EQ(outcome(content, framed_reply(value.frame, value.payload), 64),
              "k=CORRUPT(payload checksum) n=OK")
        << size;
  }
}

TEST(RepliesCoded, OfAnotherLengthItIsDrained) {
  const Coded value = coded("k", codec::normal_numbers(6400, 1));
  const auto shorter = codec::normal_numbers(5000, 1);
  EXPECT_EQ(outcome(shorter, framed_reply(value.frame, value.payload), 999),
            "k=SIZE_MISMATCH(size) n=OK");
}

TEST(RepliesCoded, WhatIsGainedIsTheDifferenceInLength) {
  const auto content = codec::normal_numbers(100'000, 8);
  const Coded value = coded("k", content);
  const std::string reply = framed_reply(value.frame, value.payload);
  GuardedTarget target(content.size());
  Batch batch({.verb = Verb::kGet, .framed = true, .identity = kIdentity});
  batch.add("k", target.bytes());
  ReplyDriver driver(1 * kMiB);
  driver.expect(batch);
  std::ptrdiff_t gained = 0;
  for (std::size_t at = 0; at < reply.size(); at += 4000) {
    const std::string_view part = std::string_view(reply).substr(at, 4000);
    ASSERT_TRUE(driver.deliver(part));
    gained += driver.replies().gained();
    EXPECT_GE(static_cast<std::ptrdiff_t>(at + part.size()) + gained, 0);
  }
  EXPECT_EQ(gained, static_cast<std::ptrdiff_t>(content.size() - value.payload.size()));
}

TEST(RepliesCoded, MemoryIsTheCallersAgainAtEveryPointOfTheStream) {
  const auto content = codec::normal_numbers(40'000, 7);
  const Coded value = coded("k", content);
  const std::string reply = framed_reply(value.frame, value.payload);
  for (std::size_t position = 0; position < reply.size(); position += 1777) {
    GuardedTarget target(content.size());
    Batch batch({.verb = Verb::kGet, .framed = true, .identity = kIdentity});
    batch.add("k", target.bytes());
    ReplyDriver driver(1 * kMiB);
    driver.expect(batch);
    ASSERT_TRUE(driver.deliver(std::string_view(reply).substr(0, position), 500));
    batch.cancel();
    EXPECT_TRUE(driver.replies().release(0));
    EXPECT_TRUE(batch.finished());
    const std::string frozen = target.text();
    ASSERT_TRUE(driver.deliver(std::string_view(reply).substr(position), 3000));
    EXPECT_TRUE(target.text() == frozen);
    EXPECT_EQ(driver.trace(), "k=CANCELLED");
  }
}

}  // namespace
}  // namespace kvferry::redis
