#pragma once
// Value: one whole RESP2/RESP3 reply as a tree, for control connections; never for payload.
//
// ValueBuilder makes it of the tokens of a parser. ValueReader does so from bytes as they arrive:
// give it what was received with feed(), then call next() until it says kNeedMore; several replies
// and pushes may come in one piece, and one reply in many. Attributes are read and dropped.
//
// Memory: a reply may hold text_bytes_max bytes of text and values_max values, each limit counted
// as they arrive; no claimed length or count reserves anything. With the defaults a hostile server
// makes us hold 4 MiB of text and 15 MB of values, and twice that while a vector grows.
// Threads: one. Failure: kBad is final, error() says why; the connection must be closed.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "resp/parser.hpp"

namespace kvferry::resp {

struct Value {
  Type type = Type::kNull;   // kSimple to kVerbatim, kArray, kSet, kPush or kMap
  std::int64_t integer = 0;  // of kInteger and kBoolean
  std::string text;          // of every other scalar; of kVerbatim without its format ("txt:")
  std::vector<Value> items;  // of an aggregate; of a map key, value, key, value

  [[nodiscard]] bool is_null() const noexcept { return type == Type::kNull; }
  [[nodiscard]] bool is_error() const noexcept {
    return type == Type::kError || type == Type::kBulkError;
  }
  [[nodiscard]] bool is_push() const noexcept { return type == Type::kPush; }
  // Whether `text` is what the server sent as one: simple, bulk or verbatim.
  [[nodiscard]] bool is_text() const noexcept {
    return type == Type::kSimple || type == Type::kBulk || type == Type::kVerbatim;
  }
  // Whether it is a list: an array, a set or a push.
  [[nodiscard]] bool is_list() const noexcept {
    return type == Type::kArray || type == Type::kSet || type == Type::kPush;
  }

  // An integer, or a text that is one: some commands send numbers as bulks.
  [[nodiscard]] std::optional<std::int64_t> as_integer() const noexcept;
  // What stands behind the text `key` in a map, or in a flat list that RESP2 sends instead of one.
  [[nodiscard]] const Value* find(std::string_view key) const noexcept;

  bool operator==(const Value&) const = default;
};

class ValueBuilder {
 public:
  struct Limits {
    std::size_t text_bytes_max = 4 * kMiB;
    std::size_t values_max = 200'000;
  };
  enum class State : std::uint8_t { kNeedMore, kValue, kBad };

  explicit ValueBuilder(Limits limits) noexcept : limits_(limits) {}

  // The next token; the one that completes a reply or a push moves it into `out`.
  State take(const Token& token, Value& out);
  // A part of the payload that the last token announced.
  void add_payload(std::string_view part) { bulk_.text += part; }
  // Forgets the reply that began.
  void reset() noexcept;
  // Why take() said kBad; a sentence without any of the server's text.
  [[nodiscard]] std::string_view error() const noexcept { return error_; }

 private:
  struct Level {
    Value value;
    std::int64_t remaining;  // elements still to come
  };

  // A value is complete: puts it into the aggregate around it, and says whether that was the last
  // of a reply.
  State place(Value value, Value& out);
  State bad(std::string_view reason) noexcept;

  Limits limits_;
  std::vector<Level> open_;  // aggregates that are not complete, outermost first
  Value bulk_;               // the bulk whose payload is arriving
  std::size_t text_bytes_ = 0;
  std::size_t values_ = 0;  // both of the present reply
  std::string_view error_;  // a literal
};

class ValueReader {
 public:
  using Limits = ValueBuilder::Limits;
  using State = ValueBuilder::State;

  ValueReader() noexcept : ValueReader(Limits{}) {}
  explicit ValueReader(Limits limits) noexcept
      : parser_(static_cast<std::int64_t>(limits.text_bytes_max)), builder_(limits) {}

  // Takes received bytes; they are copied. Requires: next() said kNeedMore since the last feed().
  void feed(ByteView bytes);

  // Moves the next reply or push into `out`; is_push() tells which. Otherwise `out` stays.
  State next(Value& out);

  // Why next() said kBad; see ValueBuilder.
  [[nodiscard]] std::string_view error() const noexcept { return builder_.error(); }
  // Whether nothing is half-read.
  [[nodiscard]] bool at_boundary() const noexcept {
    return parser_.at_boundary() && offset_ == pending_.size();
  }

 private:
  Parser parser_;
  ValueBuilder builder_;
  std::string pending_;  // received; parsed up to offset_
  std::size_t offset_ = 0;
};

}  // namespace kvferry::resp
