#include "resp/value.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace kvferry::resp {

std::optional<std::int64_t> Value::as_integer() const noexcept {
  if (type == Type::kInteger) return integer;
  if (!is_text()) return std::nullopt;
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

const Value* Value::find(std::string_view key) const noexcept {
  if (type != Type::kMap && !is_list()) return nullptr;
  for (std::size_t index = 0; index + 1 < items.size(); index += 2) {
    if (items[index].is_text() && items[index].text == key) return &items[index + 1];
  }
  return nullptr;
}

void ValueReader::feed(ByteView bytes) {
  pending_.erase(0, offset_);
  offset_ = 0;
  pending_ += as_text(bytes);
}

ValueReader::State ValueReader::next(Value& out) {
  if (!error().empty()) return State::kBad;
  State state = State::kNeedMore;
  while (state == State::kNeedMore) {
    const std::string_view rest = std::string_view(pending_).substr(offset_);
    if (const std::uint64_t owed = parser_.payload_remaining(); owed > 0) {
      if (rest.empty()) break;
      const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(owed, rest.size()));
      builder_.add_payload(rest.substr(0, part));
      parser_.take_payload(part);
      offset_ += part;
      continue;
    }
    std::size_t consumed = 0;
    const Token token = parser_.next(as_bytes(rest), consumed);
    if (token.type == Type::kNeedMore) break;
    offset_ += consumed;
    state = builder_.take(token, out);
  }
  return state;
}

ValueBuilder::State ValueBuilder::take(const Token& token, Value& out) {
  if (token.type == Type::kBad) return bad(token.text);
  const bool is_payload =
      token.type == Type::kBulk || token.type == Type::kBulkError || token.type == Type::kVerbatim;
  if (token.type != Type::kPayloadEnd) {
    const std::size_t text =
        is_payload ? static_cast<std::size_t>(token.integer) : token.text.size();
    if (text > limits_.text_bytes_max - text_bytes_) return bad("a reply has too much text");
    if (values_ == limits_.values_max) return bad("a reply has too many values");
    text_bytes_ += text;
    ++values_;
  }
  switch (token.type) {
    case Type::kBulk:
    case Type::kBulkError:
    case Type::kVerbatim:
      bulk_.type = token.type;
      return State::kNeedMore;
    case Type::kPayloadEnd: {
      Value value = std::exchange(bulk_, Value{});
      if (value.type == Type::kVerbatim && value.text.substr(0, 4).ends_with(':')) {
        value.text.erase(0, 4);
      }
      return place(std::move(value), out);
    }
    case Type::kArray:
    case Type::kSet:
    case Type::kPush:
    case Type::kMap:
    case Type::kAttribute: {
      Value value{.type = token.type, .integer = 0, .text = {}, .items = {}};
      if (token.integer == 0) return place(std::move(value), out);
      open_.push_back({.value = std::move(value), .remaining = token.integer});
      return State::kNeedMore;
    }
    case Type::kInteger:
    case Type::kBoolean:
      return place({.type = token.type, .integer = token.integer, .text = {}, .items = {}}, out);
    default:
      return place({.type = token.type, .integer = 0, .text = std::string(token.text), .items = {}},
                   out);
  }
}

ValueBuilder::State ValueBuilder::place(Value value, Value& out) {
  while (!open_.empty()) {
    // An attribute annotates the next element and is none itself.
    if (value.type == Type::kAttribute) return State::kNeedMore;
    Level& level = open_.back();
    level.value.items.push_back(std::move(value));
    if (--level.remaining > 0) return State::kNeedMore;
    value = std::move(level.value);
    open_.pop_back();
  }
  text_bytes_ = 0;
  values_ = 0;
  if (value.type == Type::kAttribute) return State::kNeedMore;
  out = std::move(value);
  return State::kValue;
}

ValueBuilder::State ValueBuilder::bad(std::string_view reason) noexcept {
  error_ = reason;
  reset();
  return State::kBad;
}

void ValueBuilder::reset() noexcept {
  open_.clear();
  bulk_ = {};
  text_bytes_ = values_ = 0;
}

}  // namespace kvferry::resp
