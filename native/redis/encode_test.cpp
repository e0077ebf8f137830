#include "redis/encode.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "codec/checksum.hpp"
#include "codec/coded.hpp"
#include "codec/frame.hpp"
#include "codec/stripe.hpp"
#include "codec/test_numbers.hpp"

namespace kvferry::redis {
namespace {

std::string take_sent(Outbox& outbox) {
  std::string wire;
  while (!outbox.empty()) {
    const iovec piece = outbox.pieces().front();
    wire.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    outbox.sent(piece.iov_len);
  }
  return wire;
}

std::string encoded(const Batch::Options& options, std::string_view key, std::string value = {}) {
  Batch batch(options);
  batch.add(key, std::as_writable_bytes(std::span(value)));
  Outbox outbox;
  encode({&batch, &batch.commands()[0]}, outbox);
  return take_sent(outbox);
}

TEST(Encode, EveryVerbIsOneCommand) {
  EXPECT_EQ(encoded({.verb = Verb::kGet}, "key"), "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
  EXPECT_EQ(encoded({.verb = Verb::kExists}, "key"), "*2\r\n$6\r\nEXISTS\r\n$3\r\nkey\r\n");
  EXPECT_EQ(encoded({.verb = Verb::kTouch}, "key"), "*2\r\n$5\r\nTOUCH\r\n$3\r\nkey\r\n");
  EXPECT_EQ(encoded({.verb = Verb::kDelete}, "k\r\n"), "*2\r\n$3\r\nDEL\r\n$3\r\nk\r\n\r\n");
}

TEST(Encode, SetCarriesTheValueAndItsTimeToLive) {
  EXPECT_EQ(encoded({.verb = Verb::kSet}, "key", "a\r\nvalue"),
            "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$8\r\na\r\nvalue\r\n");
  EXPECT_EQ(encoded({.verb = Verb::kSet, .ttl_ms = 1500}, "key", "v"),
            "*5\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1\r\nv\r\n$2\r\nPX\r\n$4\r\n1500\r\n");
  EXPECT_EQ(encoded({.verb = Verb::kSet}, "key", ""), "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$0\r\n\r\n");
}

TEST(Encode, TheLongestKeyFitsTheRoomOfACommand) {
  const std::string key(512 + 6, 'k');  // of the Python package, with a stripe's suffix
  const std::string wire = encoded({.verb = Verb::kSet, .ttl_ms = INT64_MAX, .framed = true}, key,
                                   std::string(100, 'v'));
  EXPECT_LE(wire.size() - 100, Outbox::kCommandBytesMax);
  EXPECT_NE(wire.find(key), std::string::npos);
}

TEST(Encode, ThePayloadIsNotCopied) {
  std::vector<std::byte> value(100'000);
  Batch batch({.verb = Verb::kSet});
  batch.add("key", value);
  Outbox outbox;
  encode({&batch, &batch.commands()[0]}, outbox);
  bool found = false;
  while (!outbox.empty()) {
    const iovec piece = outbox.pieces().front();
    found = found || (piece.iov_base == value.data() && piece.iov_len == value.size());
    outbox.sent(piece.iov_len);
  }
  EXPECT_TRUE(found);
}

// The frame and payload of an encoded SET of `size` bytes.
codec::Frame frame_of(const std::string& wire, std::size_t size) {
  const std::size_t end = wire.size() - 2;
  const std::size_t begin = end - size - codec::kFrameSizeBytes;
  codec::Frame frame;
  const auto header = as_bytes(wire).subspan(begin).first<codec::kFrameSizeBytes>();
  EXPECT_EQ(codec::decode_frame(header, frame), codec::FrameFault::kNone);
  EXPECT_EQ(frame.payload_checksum,
            codec::xxh3_64(as_bytes(std::string_view(wire).substr(end - size, size))));
  return frame;
}

TEST(Encode, AFrameSaysWhatTheValueIs) {
  const std::string value = "seventeen bytes..";
  const std::string wire =
      encoded({.verb = Verb::kSet, .framed = true, .identity = 42}, "key", value);
  EXPECT_TRUE(wire.starts_with("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$81\r\nKVFY")) << wire;
  const std::uint64_t checksum = codec::xxh3_64(as_bytes(value));
  EXPECT_EQ(frame_of(wire, value.size()),
            (codec::Frame{.payload_size_bytes = 17,
                          .original_size_bytes = 17,
                          .payload_checksum = checksum,
                          .identity = 42,
                          .key_digest = codec::xxh3_64(as_bytes("key")),
                          .generation = codec::generation_of(std::span(&checksum, 1))}));
  const std::string empty = encoded({.verb = Verb::kSet, .framed = true}, "key", "");
  EXPECT_EQ(frame_of(empty, 0).payload_size_bytes, 0u);
}

TEST(Encode, StripesShareOneGenerationAndTheKeyOfTheValue) {
  std::vector<std::byte> value(9 * kMiB);
  for (std::size_t i = 0; i < value.size(); i += 97) value[i] = static_cast<std::byte>(i / 97);
  Batch batch({.verb = Verb::kSet, .framed = true, .identity = 7});
  batch.add("large", value);
  ASSERT_EQ(batch.commands().size(), 3u);
  std::vector<std::uint64_t> checksums(3);
  std::vector<codec::Frame> frames;
  // Workers may encode them in any order.
  for (const std::size_t index : {1u, 2u, 0u}) {
    Command& command = batch.commands()[index];
    Outbox outbox;
    encode({&batch, &command}, outbox);
    frames.push_back(frame_of(take_sent(outbox), command.size));
    EXPECT_EQ(frames.back().stripe_index, command.stripe);
    checksums[command.stripe] = frames.back().payload_checksum;
  }
  for (const codec::Frame& frame : frames) {
    EXPECT_EQ(frame.generation, codec::generation_of(checksums));
    EXPECT_EQ(frame.key_digest, codec::xxh3_64(as_bytes("large")));
    EXPECT_EQ(frame.original_size_bytes, value.size());
    EXPECT_EQ(frame.stripe_count, 3u);
  }
  EXPECT_EQ(batch.commands().back().stripe, 0u)
      << "stripe 0 makes the value complete, so it is last";
}

constexpr Batch::Options kCoded{
    .verb = Verb::kSet, .framed = true, .identity = 7, .codec = codec::Codec::kSplit12};

TEST(EncodeCoded, TheFrameSumsTheContentAndTheBulkIsShorter) {
  std::vector<std::byte> value = codec::normal_numbers(50'000, 1);
  Batch coded(kCoded);
  Batch naive({.verb = Verb::kSet, .framed = true, .identity = 7});
  Outbox outbox;
  for (Batch* batch : {&coded, &naive}) {
    batch->add("key", value);
    encode({batch, &batch->commands()[0]}, outbox);
  }
  const std::string wire = take_sent(outbox);
  EXPECT_LT(wire.size(), 2 * value.size() * 9 / 10);
  codec::Frame frame;
  const auto header = as_bytes(wire).subspan(wire.find("KVFY")).first<codec::kFrameSizeBytes>();
  ASSERT_EQ(codec::decode_frame(header, frame), codec::FrameFault::kNone);
  EXPECT_EQ(frame.codec, codec::Codec::kSplit12);
  EXPECT_EQ(frame.payload_checksum, codec::xxh3_64(value));
  EXPECT_EQ(coded.commands()[0].generation, naive.commands()[0].generation)
      << "stripes of writers with different codecs belong together";
  EXPECT_EQ(frame_of(wire, value.size()).codec, codec::Codec::kRaw) << "the second one";
}

TEST(EncodeCoded, WhatDoesNotPayIsTheSameAsWithout) {
  const std::vector<std::byte> noise = codec::random_bytes(100'000, 2);
  const std::string value(as_text(noise));
  EXPECT_EQ(encoded(kCoded, "key", value),
            encoded({.verb = Verb::kSet, .framed = true, .identity = 7}, "key", value));
}

TEST(EncodeCoded, AHeadWhoseBodyNeverCameLeavesNothingForTheNext) {
  std::vector<std::byte> value = codec::normal_numbers(5000, 3);
  Batch coded(kCoded);
  coded.add("key", value);
  Outbox outbox;
  encode_set_head({&coded, &coded.commands()[0]}, outbox);
  (void)take_sent(outbox);
  std::string text = "value";
  Batch plain({.verb = Verb::kSet});
  plain.add("other", std::as_writable_bytes(std::span(text)));
  encode({&plain, &plain.commands()[0]}, outbox);
  EXPECT_EQ(take_sent(outbox), "*3\r\n$3\r\nSET\r\n$5\r\nother\r\n$5\r\nvalue\r\n");
}

TEST(EncodeCoded, WhatIsHeldSurvivesItsHeadAndGoesWithTheConnection) {
  std::vector<std::byte> value = codec::normal_numbers(5000, 4);
  Batch batch(kCoded);
  batch.add("key", value);
  const Work work{&batch, &batch.commands()[0]};
  Outbox outbox;
  encode_set_head(work, outbox);
  const std::string head = take_sent(outbox);
  encode_set_body(work, outbox);
  EXPECT_GT(outbox.coded().unsent_bytes(), 0u);
  const std::string parts = head + take_sent(outbox);
  EXPECT_EQ(outbox.coded().unsent_bytes(), 0u);
  encode(work, outbox);
  EXPECT_EQ(take_sent(outbox), parts);
  encode(work, outbox);
  outbox.clear();
  EXPECT_EQ(outbox.coded().unsent_bytes(), 0u);
  EXPECT_TRUE(outbox.empty());
}

}  // namespace
}  // namespace kvferry::redis
