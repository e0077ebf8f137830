#include "node/request_parser.hpp"

#include <strings.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

namespace kvferry::node {
namespace {

constexpr std::int64_t kArgumentsBeforeAuth = 10;
constexpr std::int64_t kBulkBytesBeforeAuth = 16'384;
constexpr std::size_t kArgumentsKeptBytes = 32 * kKiB;  // of which the memory is kept

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

bool is_space(char c) { return std::strchr(" \t\n\v\f\r", c) != nullptr && c != '\0'; }

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// One character behind a backslash in double quotes; moves `at` to its last character.
char escaped(std::string_view line, std::size_t& at) {
  if (line[at] == 'x' && at + 2 < line.size() && hex(line[at + 1]) >= 0 && hex(line[at + 2]) >= 0) {
    const int value = hex(line[at + 1]) * 16 + hex(line[at + 2]);
    at += 2;
    return static_cast<char>(value);
  }
  constexpr std::string_view kFrom = "nrtba";
  constexpr std::string_view kTo = "\n\r\t\b\a";
  const std::size_t index = kFrom.find(line[at]);
  return index == std::string_view::npos ? line[at] : kTo[index];
}

// As a shell splits words; nothing when quotes are open, or closed in front of a letter.
std::optional<std::vector<std::string>> words_of(std::string_view line) {
  std::vector<std::string> words;
  for (std::size_t at = 0;;) {
    while (at < line.size() && is_space(line[at])) ++at;
    if (at == line.size()) return words;
    std::string word;
    char quote = 0;
    for (; at < line.size(); ++at) {
      const char c = line[at];
      if (quote == 0) {
        if (is_space(c)) break;
        if (c == '"' || c == '\'') {
          quote = c;
        } else {
          word += c;
        }
      } else if (c == '\\' && at + 1 < line.size() && (quote == '"' || line[at + 1] == '\'')) {
        ++at;
        word += quote == '"' ? escaped(line, at) : '\'';
      } else if (c == quote) {
        if (at + 1 < line.size() && !is_space(line[at + 1])) return std::nullopt;
        quote = 0;
      } else {
        word += c;
      }
    }
    if (quote != 0) return std::nullopt;
    words.push_back(std::move(word));
  }
}

}  // namespace

RequestParser::State RequestParser::bad(std::string_view why) {
  step_ = Step::kBad;
  error_ = "ERR Protocol error: " + std::string(why);
  return State::kBad;
}

RequestParser::State RequestParser::next(ByteView input, std::size_t& consumed) {
  consumed = 0;
  if (step_ == Step::kDone) step_ = Step::kStart;
  for (;;) {
    const ByteView rest = input.subspan(consumed);
    switch (step_) {
      case Step::kBad:
        return State::kBad;
      case Step::kStart:
      case Step::kHeader: {
        std::size_t used = 0;
        const State state = step_ == Step::kStart ? start(rest, used) : header(rest, used);
        consumed += used;
        if (state != State::kNeedMore || used == 0) return state;
        break;
      }
      case Step::kText: {
        const std::size_t count = std::min(text_remaining_, rest.size());
        arguments_.back().append(as_text(rest.first(count)));
        consumed += count;
        text_remaining_ -= count;
        if (text_remaining_ > 0) return State::kNeedMore;
        step_ = Step::kTrailer;
        break;
      }
      case Step::kTrailer:
        if (rest.size() < 2) return State::kNeedMore;
        consumed += 2;  // as Valkey: what stands there is not looked at
        argument_ended();
        if (step_ == Step::kDone) return State::kCommand;
        break;
      case Step::kDone:
        return State::kCommand;
    }
  }
}

void RequestParser::forget() noexcept {
  if (held_bytes() <= kArgumentsKeptBytes) return;
  std::vector<std::string>().swap(arguments_);  // {} would keep the memory
  text_bytes_ = 0;
}

void RequestParser::argument_ended() noexcept {
  step_ = --expected_ == 0 ? Step::kDone : Step::kHeader;
}

RequestParser::State RequestParser::start(ByteView input, std::size_t& consumed) {
  if (input.empty()) return State::kNeedMore;
  const std::string_view text = as_text(input);
  const bool array = text[0] == '*';
  const std::size_t end = text.substr(0, kLineBytesMax).find('\n');
  if (end == std::string_view::npos) {
    if (text.size() < kLineBytesMax) return State::kNeedMore;
    return bad(array ? "too big mbulk count string" : "too big inline request");
  }
  consumed = end + 1;
  std::string_view line = text.substr(0, end);
  if (line.ends_with('\r')) line.remove_suffix(1);

  arguments_.clear();
  value_apart_ = false;
  text_bytes_ = 0;
  if (!array) return inline_command(line);
  const auto count = number(line.substr(1));
  if (!count || *count > kArgumentsMax) return bad("invalid multibulk length");
  if (*count > kArgumentsBeforeAuth && !authenticated_) {
    return bad("unauthenticated multibulk length");
  }
  if (*count <= 0) return State::kNeedMore;  // nothing, and no answer
  expected_ = *count;
  step_ = Step::kHeader;
  return State::kNeedMore;
}

RequestParser::State RequestParser::inline_command(std::string_view line) {
  auto words = words_of(line);
  if (!words) return bad("unbalanced quotes in request");
  if (words->empty()) return State::kNeedMore;
  if (std::ranges::any_of(
          *words, [&](const std::string& word) { return word.size() > limits_.value_bytes_max; })) {
    return bad("invalid bulk length");
  }
  arguments_ = std::move(*words);
  step_ = Step::kDone;
  return State::kCommand;
}

RequestParser::State RequestParser::header(ByteView input, std::size_t& consumed) {
  if (input.empty()) return State::kNeedMore;
  const std::string_view text = as_text(input);
  const std::size_t end = text.substr(0, kLineBytesMax).find('\n');
  if (end == std::string_view::npos) {
    return text.size() < kLineBytesMax ? State::kNeedMore : bad("too big bulk count string");
  }
  if (text[0] != '$') {
    const bool shown = text[0] >= ' ' && text[0] <= '~';
    return bad("expected '$', got '" + std::string(1, shown ? text[0] : '?') + "'");
  }
  std::string_view line = text.substr(1, end - 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  const auto length = number(line);
  if (!length || *length < 0 || static_cast<std::size_t>(*length) > limits_.value_bytes_max) {
    return bad("invalid bulk length");
  }
  if (*length > kBulkBytesBeforeAuth && !authenticated_) return bad("unauthenticated bulk length");
  const auto size = static_cast<std::size_t>(*length);
  consumed = end + 1;
  if (arguments_.size() == 2 && ::strcasecmp(arguments_[0].c_str(), "set") == 0) {
    arguments_.emplace_back();
    value_apart_ = true;
    value_remaining_ = size;
    step_ = Step::kTrailer;
    return State::kValue;
  }
  text_bytes_ += size + kArgumentCost;
  if (text_bytes_ > limits_.text_bytes_max) return bad("too many bytes of arguments");
  arguments_.emplace_back();
  text_remaining_ = size;
  step_ = Step::kText;
  return State::kNeedMore;
}

}  // namespace kvferry::node
