#include "resp/parser.hpp"

#include <charconv>
#include <cstring>
#include <optional>

namespace kvferry::resp {
namespace {

constexpr std::string_view kTypeBytes = "+-:$!=*~>%|_#,(";

std::optional<std::int64_t> parse_integer(std::string_view text) noexcept {
  if (!text.empty() && text.front() == '+') {
    text.remove_prefix(1);
    if (!text.empty() && text.front() == '-') return std::nullopt;
  }
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

}  // namespace

Token Parser::next(ByteView input, std::size_t& consumed) noexcept {
  consumed = 0;
  if (bad_) return bad("the stream is out of step");
  if (in_payload_) {
    if (input.size() < 2) return {};
    if (as_text(input.first(2)) != "\r\n") return bad("a bulk does not end with CRLF");
    consumed = 2;
    in_payload_ = false;
    return scalar({.type = Type::kPayloadEnd, .text = {}});
  }
  if (input.empty()) return {};
  const std::string_view text = as_text(input);
  // Judged by its first byte, so that what is no RESP does not wait for a line that never ends.
  if (kTypeBytes.find(text[0]) == std::string_view::npos) return bad("an unknown reply type");
  const void* newline = std::memchr(text.data(), '\n', std::min(text.size(), kLineBytesMax));
  if (newline == nullptr) {
    return text.size() >= kLineBytesMax ? bad("a line is longer than 8 KiB") : Token{};
  }
  const auto length = static_cast<std::size_t>(static_cast<const char*>(newline) - text.data());
  if (length < 2 || text[length - 1] != '\r') return bad("a line does not end with CRLF");
  consumed = length + 1;
  return line(text[0], text.substr(1, length - 2));
}

Token Parser::line(char type, std::string_view text) noexcept {
  if (text.find('\r') != std::string_view::npos) return bad("a line holds a bare CR");
  switch (type) {
    case '+':
      return scalar({.type = Type::kSimple, .text = text});
    case '-':
      return scalar({.type = Type::kError, .text = text});
    case ',':
      return scalar({.type = Type::kDouble, .text = text});
    case '(':
      return scalar({.type = Type::kBigNumber, .text = text});
    case ':': {
      const auto value = parse_integer(text);
      if (!value) return bad("an integer is malformed");
      return scalar({.type = Type::kInteger, .integer = *value, .text = text});
    }
    case '#':
      if (text != "t" && text != "f") return bad("a boolean is neither t nor f");
      return scalar({.type = Type::kBoolean, .integer = text == "t", .text = text});
    case '_':
      if (!text.empty()) return bad("a null carries text");
      return scalar({.type = Type::kNull, .text = {}});
    case '$':
      return open_bulk(Type::kBulk, text);
    case '!':
      return open_bulk(Type::kBulkError, text);
    case '=':
      return open_bulk(Type::kVerbatim, text);
    case '*':
      return open_aggregate(Type::kArray, text);
    case '~':
      return open_aggregate(Type::kSet, text);
    case '>':
      return open_aggregate(Type::kPush, text);
    case '%':
      return open_aggregate(Type::kMap, text);
    case '|':
      return open_aggregate(Type::kAttribute, text);
    default:
      return bad("an unknown reply type");
  }
}

Token Parser::open_bulk(Type type, std::string_view text) noexcept {
  const auto length = parse_integer(text);
  if (type == Type::kBulk && length == -1) return scalar({.type = Type::kNull, .text = {}});
  if (!length || *length < 0) return bad("a bulk length is malformed");
  if (*length > bulk_bytes_max_) return bad("a bulk is longer than the limit");
  payload_ = static_cast<std::uint64_t>(*length);
  in_payload_ = true;
  return {.type = type, .integer = *length, .text = {}, .depth = depth_, .in_extra = in_extra()};
}

Token Parser::open_aggregate(Type type, std::string_view text) noexcept {
  auto count = parse_integer(text);
  if (type == Type::kArray && count == -1) return scalar({.type = Type::kNull, .text = {}});
  if (!count || *count < 0 || *count > kElementsMax) return bad("an element count is malformed");
  if (type == Type::kPush && depth_ > 0) return bad("a push inside a reply");
  if (type == Type::kMap || type == Type::kAttribute) *count *= 2;

  const bool attribute = type == Type::kAttribute;
  const bool extra = attribute || type == Type::kPush || in_extra();
  Token token{.type = type, .integer = *count, .text = {}, .depth = depth_, .in_extra = extra};
  if (depth_ == kDepthMax) return bad("replies nest too deeply");
  stack_[depth_++] = {.remaining = *count, .extra = extra, .attribute = attribute};
  if (*count == 0) {
    // An empty aggregate is complete: give it an element that ends at once.
    stack_[depth_ - 1].remaining = 1;
    element_ended(token);
  }
  return token;
}

Token Parser::scalar(Token token) noexcept {
  token.depth = depth_;
  token.in_extra = in_extra();
  element_ended(token);
  return token;
}

void Parser::element_ended(Token& token) noexcept {
  while (depth_ > 0) {
    Level& level = stack_[depth_ - 1];
    if (--level.remaining > 0) return;
    const bool attribute = level.attribute;
    const bool push_done = level.extra && depth_ == 1;
    --depth_;
    // An attribute annotates the next element and is none itself; a push is no reply.
    if (attribute || push_done) return;
  }
  token.ends_reply = true;
}

Token Parser::bad(std::string_view reason) noexcept {
  bad_ = true;
  return {.type = Type::kBad, .text = reason};
}

}  // namespace kvferry::resp
