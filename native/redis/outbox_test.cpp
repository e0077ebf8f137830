#include "redis/outbox.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace kvferry::redis {
namespace {

void add_text(Outbox& outbox, std::string_view text) {
  std::memcpy(outbox.text_space().data(), text.data(), text.size());
  outbox.take_text(text.size());
}

// Sends everything, at most `step` bytes of what is offered at a time.
std::string drain(Outbox& outbox, std::size_t step) {
  std::string wire;
  while (!outbox.empty()) {
    std::size_t taken = 0;
    for (const iovec& piece : outbox.pieces()) {
      const std::size_t part = std::min(piece.iov_len, step - taken);
      wire.append(static_cast<const char*>(piece.iov_base), part);
      taken += part;
    }
    EXPECT_GT(taken, 0u);
    outbox.sent(taken);
  }
  return wire;
}

TEST(Outbox, TextBehindTextIsOnePiece) {
  Outbox outbox;
  EXPECT_TRUE(outbox.empty());
  add_text(outbox, "one ");
  add_text(outbox, "two");
  ASSERT_EQ(outbox.pieces().size(), 1u);
  EXPECT_EQ(outbox.pieces()[0].iov_len, 7u);
  outbox.add_payload({});
  EXPECT_EQ(outbox.pieces().size(), 1u) << "nothing to send is no piece";
  EXPECT_EQ(drain(outbox, 100), "one two");
}

TEST(Outbox, AdjacentPayloadsAreOnePiece) {
  const std::string value = "0123456789";
  Outbox outbox;
  outbox.add_payload(as_bytes(value).first(4));
  outbox.add_payload(as_bytes(value).subspan(4));
  EXPECT_EQ(outbox.pieces().size(), 1u);
  EXPECT_EQ(drain(outbox, 3), value);
}

TEST(Outbox, OnlyALargePayloadBeginsACallOfItsOwn) {
  const std::string value(Outbox::kLargeBytes, 'v');
  Outbox outbox;
  add_text(outbox, "head");
  outbox.add_payload(as_bytes(value).first(value.size() - 1));
  add_text(outbox, "end, head");
  outbox.add_payload(as_bytes(value));
  ASSERT_EQ(outbox.pieces().size(), 3u);
  outbox.sent(4 + value.size() - 1 + 9);
  EXPECT_EQ(outbox.pieces().size(), 1u);
}

TEST(Outbox, AnyPartialSendKeepsTheOrder) {
  std::vector<std::string> values;
  for (std::size_t i = 0; i < 40; ++i) {
    values.push_back(std::string(i % 5 == 0 ? 40'000 : i, static_cast<char>('A' + i)));
  }
  for (const std::size_t step : {1000u, 4096u, 33'000u, 1'000'000u}) {
    Outbox outbox;
    std::string expected;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::string text = "head " + std::to_string(i) + ":";
      ASSERT_TRUE(outbox.room_for_command());
      add_text(outbox, text);
      outbox.add_payload(as_bytes(values[i]));
      expected += text + values[i];
    }
    EXPECT_EQ(drain(outbox, step), expected);
    EXPECT_TRUE(outbox.empty());
  }
}

TEST(Outbox, WhatIsAddedWhileAPieceIsHalfSentComesBehindIt) {
  Outbox outbox;
  add_text(outbox, "abcdef");
  outbox.sent(4);
  add_text(outbox, "ghi");
  EXPECT_EQ(drain(outbox, 2), "efghi");
}

TEST(Outbox, SaysWhenTextOrPiecesRunOut) {
  const std::string value = "v";
  Outbox pieces;
  std::size_t commands = 0;
  for (; pieces.room_for_command(); ++commands) {
    add_text(pieces, "h");
    pieces.add_payload(as_bytes(value));
    add_text(pieces, "t");
  }
  EXPECT_GE(commands, 64u);
  EXPECT_LE(pieces.pieces().size(), 64u) << "one call takes a bounded number of pieces";
  std::string expected;
  for (std::size_t i = 0; i < commands; ++i) expected += "hvt";
  EXPECT_EQ(drain(pieces, SIZE_MAX), expected);
  EXPECT_TRUE(pieces.room_for_command()) << "an empty outbox has all its room again";

  Outbox text;
  std::size_t used = 0;
  for (; text.room_for_command(); used += Outbox::kCommandBytesMax) {
    add_text(text, std::string(Outbox::kCommandBytesMax, 'x'));
  }
  EXPECT_LE(used, Outbox::kTextBytesMax);
  EXPECT_GE(used, Outbox::kTextBytesMax - Outbox::kCommandBytesMax);
  text.clear();
  EXPECT_TRUE(text.empty() && text.room_for_command());
}

}  // namespace
}  // namespace kvferry::redis
