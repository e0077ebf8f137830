#include "resp/parser.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "resp/writer.hpp"

namespace kvferry::resp {
namespace {

// A readable trace of a stream, fed in pieces of the given sizes: one word per token.
std::string trace(std::string_view stream, const std::vector<std::size_t>& pieces) {
  Parser parser;
  std::string out;
  std::string held;  // received and not yet consumed
  std::string payload;
  std::size_t offset = 0;
  for (std::size_t piece : pieces) {
    held += stream.substr(offset, piece);
    offset += piece;
    for (;;) {
      if (parser.payload_remaining() > 0) {
        const std::size_t take = std::min<std::size_t>(held.size(), parser.payload_remaining());
        payload += held.substr(0, take);
        held.erase(0, take);
        parser.take_payload(take);
        if (parser.payload_remaining() > 0) break;
      }
      std::size_t consumed = 0;
      const Token token = parser.next(as_bytes(held), consumed);
      if (token.type == Type::kNeedMore) break;
      out += std::to_string(static_cast<int>(token.type)) + "@" + std::to_string(token.depth);
      if (token.type == Type::kPayloadEnd) {
        out += "'" + payload + "'";
        payload.clear();
      } else {
        out += "(" + std::string(token.text) + "," + std::to_string(token.integer) + ")";
      }
      if (token.in_extra) out += "x";
      if (token.ends_reply) out += "!";
      out += " ";
      if (token.type == Type::kBad) return out;
      held.erase(0, consumed);
    }
  }
  return out;
}

std::string whole(std::string_view stream) { return trace(stream, {stream.size()}); }

constexpr std::string_view kMixed =
    "+OK\r\n-ERR no\r\n:42\r\n$5\r\nhello\r\n$-1\r\n_\r\n*2\r\n$1\r\na\r\n:7\r\n"
    ">2\r\n+message\r\n$2\r\nhi\r\n|1\r\n+ttl\r\n:9\r\n$0\r\n\r\n%1\r\n+k\r\n*0\r\n#t\r\n,1.5\r\n"
    "(123456789012345678901234567890\r\n~1\r\n_\r\n=7\r\ntxt:abc\r\n!3\r\nERR\r\n*-1\r\n";

TEST(Parser, EveryTypeIsReadAndRepliesAreCounted) {
  const std::string text = whole(kMixed);
  // Replies: OK ERR 42 hello null null array bulk(after attribute) map bool double big set
  // verbatim bulk-error null-array. The push and the attribute end no reply.
  EXPECT_EQ(std::count(text.begin(), text.end(), '!'), 16) << text;
  EXPECT_EQ(text.find(std::to_string(static_cast<int>(Type::kBad)) + "@"), std::string::npos);
}

TEST(Parser, AnyChunkingGivesTheSameTokens) {
  const std::string expected = whole(kMixed);
  EXPECT_EQ(trace(kMixed, std::vector<std::size_t>(kMixed.size(), 1)), expected);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::size_t> pieces;
    std::size_t left = kMixed.size();
    while (left > 0) {
      const std::size_t piece = std::min<std::size_t>(left, 1 + random() % 9);
      pieces.push_back(piece);
      left -= piece;
    }
    ASSERT_EQ(trace(kMixed, pieces), expected);
  }
}

TEST(Parser, NestedAttributeIsNoElement) {
  // The array has two elements; the attribute before the second is not counted.
  const std::string text = whole("*2\r\n:1\r\n|1\r\n+a\r\n+b\r\n:2\r\n+NEXT\r\n");
  EXPECT_EQ(std::count(text.begin(), text.end(), '!'), 2) << text;
}

TEST(Parser, EmptyPushAndEmptyAttributeAreSkipped) {
  const std::string text = whole(">0\r\n|0\r\n+OK\r\n");
  EXPECT_EQ(std::count(text.begin(), text.end(), '!'), 1) << text;
}

TEST(Parser, WhatIsWrongIsRefusedForEver) {
  for (std::string_view stream : {"$3\r\nabcXY",
                                  "$abc\r\n",
                                  "$-2\r\n",
                                  "$?\r\n",
                                  "*?\r\n",
                                  ":12x\r\n",
                                  ":\r\n",
                                  ":+-1\r\n",
                                  "#x\r\n",
                                  "@huh\r\n",
                                  "\r\n",
                                  "+a\rb\r\n",
                                  "+no carriage return\n",
                                  "_x\r\n",
                                  "$99999999999\r\n",
                                  "*99999999999\r\n",
                                  ":99999999999999999999\r\n",
                                  "%-1\r\n",
                                  "!-1\r\n",
                                  "*1\r\n>1\r\n"}) {
    const std::string text = whole(stream);
    EXPECT_NE(text.find("17@"), std::string::npos) << stream;
  }
}

TEST(Parser, DepthAndLineLengthAreBounded) {
  std::string deep;
  for (std::size_t level = 0; level <= Parser::kDepthMax; ++level) deep += "*1\r\n";
  EXPECT_NE(whole(deep).find("nest too deeply"), std::string::npos);
  EXPECT_NE(whole(std::string(Parser::kLineBytesMax, '+')).find("longer than"), std::string::npos);
}

TEST(Parser, BoundaryIsKnown) {
  Parser parser;
  std::size_t consumed = 0;
  EXPECT_TRUE(parser.at_boundary());
  EXPECT_EQ(parser.next(as_bytes("$2\r\n"), consumed).integer, 2);
  EXPECT_FALSE(parser.at_boundary());
  parser.take_payload(2);
  EXPECT_FALSE(parser.at_boundary());
  EXPECT_TRUE(parser.next(as_bytes("\r\n"), consumed).ends_reply);
  EXPECT_TRUE(parser.at_boundary());
}

TEST(Writer, WritesCommandsAndNeverPastTheEnd) {
  std::array<std::byte, 64> memory{};
  Writer writer(memory);
  writer.command(3).bulk("SET").bulk("key").bulk_header(4096);
  EXPECT_EQ(as_text(writer.written()), "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$4096\r\n");
  EXPECT_TRUE(writer.complete());
  Writer tight(MutableBytes(memory).first(8));
  tight.command(1).bulk("PING");
  EXPECT_FALSE(tight.complete());
  EXPECT_LE(tight.written().size(), 8u);
}

}  // namespace
}  // namespace kvferry::resp
