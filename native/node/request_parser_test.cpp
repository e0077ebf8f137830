#include "node/request_parser.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvferry::node {
namespace {

using State = RequestParser::State;

// Every command as "GET|k", a value apart as "<5>", an error as its text; fed in steps.
std::string read(std::string_view input, std::size_t step = SIZE_MAX, RequestLimits limits = {},
                 bool authenticated = true) {
  RequestParser parser(limits);
  parser.set_authenticated(authenticated);
  std::string held, out;
  while (!input.empty()) {
    const std::size_t count = std::min(step, input.size());
    held += input.substr(0, count);
    input.remove_prefix(count);
    for (;;) {
      if (parser.value_remaining() > 0) {
        const std::size_t part = std::min(held.size(), parser.value_remaining());
        parser.take_value(part);
        held.erase(0, part);
        if (parser.value_remaining() > 0) break;
      }
      std::size_t consumed = 0;
      const State state = parser.next(as_bytes(held), consumed);
      held.erase(0, consumed);
      if (state == State::kNeedMore) break;
      if (state == State::kBad) return out + std::string(parser.error());
      if (state == State::kValue) {
        out += "<" + std::to_string(parser.value_remaining()) + ">";
        continue;
      }
      for (const std::string& word : parser.arguments()) out += word + "|";
      out.back() = ' ';
    }
  }
  return out;
}

TEST(RequestParser, CommandsAreTheSameHoweverTheyAreCut) {
  const std::string input =
      "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n\r\nPING  hello\r\n*0\r\n*-1\r\n*5\r\n$3\r\nset\r\n$1\r\nk\r\n"
      "$5\r\nvalue\r\n$2\r\nPX\r\n$2\r\n10\r\n*1\r\n$4\r\nPING\r\n";
  for (const std::size_t step : {1u, 2u, 3u, 7u, 1000u}) {
    EXPECT_EQ(read(input, step), "GET|k PING|hello <5>set|k||PX|10 PING ");
  }
}

TEST(RequestParser, ALineIsWordsAndQuotesAreRefused) {
  EXPECT_EQ(read(" SET\tk  v \r\n\r\n \nPING\n"), "SET|k|v PING ");
  EXPECT_EQ(read("GET \"a b\"\r\n"), "ERR Protocol error: quotes in a request of one line");
  EXPECT_EQ(read("GET a'b\r\n"), "ERR Protocol error: quotes in a request of one line");
}

TEST(RequestParser, WhatIsNoRequestIsRefusedInValkeysWords) {
  const std::string before = "ERR Protocol error: ";
  EXPECT_EQ(read("*x\r\n"), before + "invalid multibulk length");
  EXPECT_EQ(read("*01\r\n"), before + "invalid multibulk length");
  EXPECT_EQ(read("*20000000\r\n"), before + "invalid multibulk length");
  EXPECT_EQ(read("*1\r\nfoo\r\n"), before + "expected '$', got 'f'");
  EXPECT_EQ(read("*1\r\n$-1\r\n"), before + "invalid bulk length");
  EXPECT_EQ(read("*1\r\n$2000000000\r\n"), before + "invalid bulk length");
  EXPECT_EQ(read(std::string(70'000, 'x')), before + "too big inline request");
  EXPECT_EQ(read("*" + std::string(70'000, '1')), before + "too big mbulk count string");
  EXPECT_EQ(read("*1\r\n$" + std::string(70'000, '1')), before + "too big bulk count string");
}

TEST(RequestParser, ArgumentsAndTheirNumberAreBounded) {
  EXPECT_EQ(read("*2\r\n$3\r\nDEL\r\n$90\r\n", SIZE_MAX, {.text_bytes_max = 100}),
            "ERR Protocol error: too many bytes of arguments");
  EXPECT_EQ(read("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$90\r\n", SIZE_MAX, {.text_bytes_max = 100}),
            "<90>");
}

TEST(RequestParser, WhoHasNotSaidWhoHeIsMaySayLittle) {
  EXPECT_EQ(read("*11\r\n", SIZE_MAX, {}, false),
            "ERR Protocol error: unauthenticated multibulk length");
  EXPECT_EQ(read("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16385\r\n", SIZE_MAX, {}, false),
            "ERR Protocol error: unauthenticated bulk length");
}

}  // namespace
}  // namespace kvferry::node
