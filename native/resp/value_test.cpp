#include "resp/value.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvferry::resp {
namespace {

using State = ValueReader::State;

// "[1 'a' null]", "{k: v}", "push[...]": one text for one value.
std::string show(const Value& value) {
  const auto items = [&](std::string_view open, std::string_view close) {
    std::string out(open);
    for (const Value& item : value.items) out += (&item == &value.items[0] ? "" : " ") + show(item);
    return out.append(close);
  };
  switch (value.type) {
    case Type::kNull:
      return "null";
    case Type::kInteger:
      return std::to_string(value.integer);
    case Type::kBoolean:
      return value.integer != 0 ? "true" : "false";
    case Type::kArray:
      return items("[", "]");
    case Type::kSet:
      return items("set[", "]");
    case Type::kPush:
      return items("push[", "]");
    case Type::kMap:
      return items("{", "}");
    case Type::kError:
    case Type::kBulkError:
      return "!" + value.text;
    default:
      return "'" + value.text + "'";
  }
}

// Everything that the reader makes of `stream`, fed `step` bytes at a time, one line per value.
std::string read_all(std::string_view stream, std::size_t step, ValueReader::Limits limits = {}) {
  ValueReader reader(limits);
  std::string out;
  for (std::size_t at = 0; at < stream.size(); at += std::min(step, stream.size())) {
    reader.feed(as_bytes(stream.substr(at, step)));
    Value value;
    State state = reader.next(value);
    for (; state == State::kValue; state = reader.next(value)) out += show(value) + "\n";
    if (state == State::kBad) return out + "bad: " + std::string(reader.error());
  }
  return out + (reader.at_boundary() ? "" : "more");
}

struct Case {
  std::string_view stream;
  std::string_view values;
};

class Readable : public testing::TestWithParam<Case> {};

TEST_P(Readable, HoweverItIsCut) {
  for (const std::size_t step : {std::size_t{1}, std::size_t{2}, std::size_t{7}, SIZE_MAX}) {
    EXPECT_EQ(read_all(GetParam().stream, step), GetParam().values) << "in steps of " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Value, Readable,
    testing::Values(Case{"+OK\r\n", "'OK'\n"}, Case{"-ERR no\r\n", "!ERR no\n"},
                    Case{":-7\r\n", "-7\n"}, Case{"$-1\r\n", "null\n"}, Case{"*-1\r\n", "null\n"},
                    Case{"_\r\n", "null\n"}, Case{"$0\r\n\r\n", "''\n"},
                    Case{"$5\r\na\r\nbc\r\n", "'a\r\nbc'\n"}, Case{"!6\r\nERR no\r\n", "!ERR no\n"},
                    Case{"=7\r\ntxt:abc\r\n", "'abc'\n"}, Case{"=4\r\ntxt:\r\n", "''\n"},
                    Case{"=3\r\nabc\r\n", "'abc'\n"}, Case{",1.5\r\n", "'1.5'\n"},
                    Case{"(123456789012345678901\r\n", "'123456789012345678901'\n"},
                    Case{"#t\r\n#f\r\n", "true\nfalse\n"}, Case{"*0\r\n", "[]\n"},
                    Case{"%0\r\n", "{}\n"}, Case{"*3\r\n:1\r\n$1\r\na\r\n_\r\n", "[1 'a' null]\n"},
                    Case{"*2\r\n*2\r\n*0\r\n~1\r\n:1\r\n%1\r\n+k\r\n*1\r\n:2\r\n",
                         "[[[] set[1]] {'k' [2]}]\n"},
                    Case{"*1\r\n*1\r\n*1\r\n*0\r\n:9\r\n", "[[[[]]]]\n9\n"},
                    Case{">2\r\n+message\r\n:1\r\n:2\r\n>0\r\n", "push['message' 1]\n2\npush[]\n"},
                    Case{"*2\r\n:1\r\n", "more"}, Case{"$3\r\nab", "more"}, Case{"+OK", "more"},
                    Case{"$2\r\nab\r", "more"}));

// An attribute stands before what it annotates, at any depth, and is none of its elements.
INSTANTIATE_TEST_SUITE_P(
    Attribute, Readable,
    testing::Values(Case{"|1\r\n+ttl\r\n:3\r\n:5\r\n", "5\n"}, Case{"|0\r\n:5\r\n", "5\n"},
                    Case{"*2\r\n|1\r\n+a\r\n*1\r\n:3\r\n:1\r\n:2\r\n", "[1 2]\n"},
                    Case{"*2\r\n|0\r\n:1\r\n:2\r\n", "[1 2]\n"},
                    Case{"|1\r\n|1\r\n:0\r\n:0\r\n+a\r\n:3\r\n>1\r\n:1\r\n", "push[1]\n"},
                    Case{"|1\r\n+a\r\n:3\r\n", ""}));

INSTANTIATE_TEST_SUITE_P(
    Refused, Readable,
    testing::Values(Case{"+OK\r\nHTTP/1.1\r\n", "'OK'\nbad: an unknown reply type"},
                    Case{"*1\r\n$1\r\nabc\r\n", "bad: a bulk does not end with CRLF"},
                    Case{"*-2\r\n", "bad: an element count is malformed"},
                    Case{"*1\r\n>1\r\n:1\r\n", "bad: a push inside a reply"},
                    Case{"*?\r\n", "bad: an element count is malformed"}));

TEST(ValueReader, BadIsFinal) {
  ValueReader reader;
  Value value{.type = Type::kInteger, .integer = 4, .text = {}, .items = {}};
  reader.feed(as_bytes("nonsense"));
  EXPECT_EQ(reader.next(value), State::kBad);
  reader.feed(as_bytes("+OK\r\n"));
  EXPECT_EQ(reader.next(value), State::kBad);
  EXPECT_FALSE(reader.at_boundary());
  EXPECT_EQ(value.integer, 4) << "what was no value was written";
}

TEST(ValueReader, TheTextOfAReplyIsLimited) {
  const ValueReader::Limits limits{.text_bytes_max = 10, .values_max = 100};
  const std::string fits = "*2\r\n$4\r\n1234\r\n+123456\r\n";
  // A limit is for one reply: the next one begins anew.
  EXPECT_EQ(read_all(fits + fits + fits, 5, limits),
            "['1234' '123456']\n['1234' '123456']\n['1234' '123456']\n");
  EXPECT_EQ(read_all("*2\r\n$4\r\n1234\r\n+1234567\r\n", 5, limits),
            "bad: a reply has too much text");
  // The claim is enough: nothing of the payload has to arrive.
  EXPECT_EQ(read_all("*2\r\n$4\r\n1234\r\n$7\r\n", 5, limits), "bad: a reply has too much text");
  EXPECT_EQ(read_all("$11\r\n", 5, limits), "bad: a bulk is longer than the limit");
  EXPECT_EQ(read_all("|1\r\n+12345678901\r\n:1\r\n", 5, limits), "bad: a reply has too much text");
}

TEST(ValueReader, TheValuesOfAReplyAreLimited) {
  const ValueReader::Limits limits{.text_bytes_max = 100, .values_max = 4};
  EXPECT_EQ(read_all("*3\r\n_\r\n_\r\n_\r\n*0\r\n", 3, limits), "[null null null]\n[]\n");
  EXPECT_EQ(read_all("*4\r\n_\r\n_\r\n_\r\n_\r\n", 3, limits), "bad: a reply has too many values");
  EXPECT_EQ(read_all("*2\r\n*1\r\n*1\r\n_\r\n*0\r\n", 3, limits),
            "bad: a reply has too many values");
  EXPECT_EQ(read_all("*2\r\n|2\r\n_\r\n_\r\n_\r\n", 3, limits), "bad: a reply has too many values");
}

TEST(ValueReader, AClaimReservesNothing) {
  // With the sanitizers' allocator 2^31 values or 4 MiB sixteen times over would be noticed.
  std::string stream;
  for (int depth = 0; depth < 16; ++depth) stream += "*2147483647\r\n";
  EXPECT_EQ(read_all(stream + "$4194304\r\nx", SIZE_MAX), "more");
  EXPECT_EQ(read_all(stream + "*1\r\n", SIZE_MAX), "bad: replies nest too deeply");
}

TEST(ValueReader, ALargeReplyInOnePiece) {
  std::string stream = "*100000\r\n";
  for (int index = 0; index < 100'000; ++index) stream += ":1\r\n";
  ValueReader reader;
  reader.feed(as_bytes(stream));
  Value value;
  ASSERT_EQ(reader.next(value), State::kValue);
  EXPECT_EQ(value.items.size(), 100'000u);
  EXPECT_EQ(reader.next(value), State::kNeedMore);
  EXPECT_TRUE(reader.at_boundary());
}

Value parsed(std::string_view stream) {
  ValueReader reader;
  reader.feed(as_bytes(stream));
  Value value;
  EXPECT_EQ(reader.next(value), State::kValue) << stream;
  return value;
}

TEST(Value, NumbersMayBeTexts) {
  EXPECT_EQ(parsed(":-5\r\n").as_integer(), -5);
  EXPECT_EQ(parsed("$4\r\n6379\r\n").as_integer(), 6379);
  for (const std::string_view none :
       {"$5\r\n6379x\r\n", "$0\r\n\r\n", "$2\r\n 1\r\n", "_\r\n", "*0\r\n", "-5\r\n", "#t\r\n",
        "$20\r\n99999999999999999999\r\n"}) {
    EXPECT_EQ(parsed(none).as_integer(), std::nullopt) << none;
  }
}

TEST(Value, FieldsOfMapsAndOfFlatLists) {
  for (const std::string_view stream : {"%2\r\n$2\r\nip\r\n$2\r\nid\r\n$2\r\nid\r\n:7\r\n",
                                        "*4\r\n$2\r\nip\r\n$2\r\nid\r\n$2\r\nid\r\n:7\r\n"}) {
    const Value value = parsed(stream);
    ASSERT_NE(value.find("id"), nullptr) << "a value was taken for a key: " << stream;
    EXPECT_EQ(value.find("id")->integer, 7);
    EXPECT_EQ(value.find("port"), nullptr);
  }
  EXPECT_EQ(parsed("*1\r\n$2\r\nid\r\n").find("id"), nullptr) << "a key without a value";
  EXPECT_EQ(parsed("$2\r\nid\r\n").find("id"), nullptr);
}

TEST(Value, KindsAndEquality) {
  EXPECT_TRUE(parsed(">1\r\n:1\r\n").is_push());
  EXPECT_FALSE(parsed("*1\r\n:1\r\n").is_push());
  EXPECT_TRUE(parsed("!1\r\nx\r\n").is_error());
  EXPECT_FALSE(parsed("-x\r\n").is_text());
  EXPECT_EQ(parsed("*2\r\n:1\r\n+a\r\n"), parsed("*2\r\n:1\r\n+a\r\n"));
  EXPECT_NE(parsed("*2\r\n:1\r\n+a\r\n"), parsed("*2\r\n:1\r\n+b\r\n"));
}

}  // namespace
}  // namespace kvferry::resp
