#include "node/request_parser.hpp"

#include <strings.h>

#include <algorithm>
#include <cstring>

#include "node/numbers.hpp"

namespace kvferry::node {
namespace {

constexpr std::int64_t kArgumentsBeforeAuth = 10;
constexpr std::int64_t kBulkBytesBeforeAuth = 16'384;
constexpr std::size_t kArgumentsKeptBytes = 32 * kKiB;  // of which the memory is kept

bool is_space(char c) { return std::strchr(" \t\n\v\f\r", c) != nullptr && c != '\0'; }

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < line.size();) {
    const auto space = std::find_if(line.begin() + std::ptrdiff_t(at), line.end(), is_space);
    const std::size_t end = static_cast<std::size_t>(space - line.begin());
    if (end > at) words.emplace_back(line.substr(at, end - at));
    at = end + 1;
  }
  return words;
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
  const auto count = number<std::int64_t>(line.substr(1));
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
  // Whoever quotes means something else than words.
  if (line.find_first_of("\"'") != line.npos) return bad("quotes in a request of one line");
  auto words = words_of(line);
  if (words.empty()) return State::kNeedMore;
  if (std::ranges::any_of(
          words, [&](const std::string& word) { return word.size() > limits_.value_bytes_max; })) {
    return bad("invalid bulk length");
  }
  arguments_ = std::move(words);
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
  const auto length = number<std::int64_t>(line);
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
