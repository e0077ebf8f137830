#pragma once
// Reply: RESP2 or RESP3 replies, appended to a text.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvferry::node {

class Reply {
 public:
  Reply(std::string& out, bool resp3) noexcept : out_(&out), resp3_(resp3) {}

  Reply& simple(std::string_view text) { return raw("+").line(text); }
  // Text that a client sent is shown without line ends.
  Reply& error(std::string_view text) {
    raw("-");
    for (const char c : text) out_->push_back(c == '\r' || c == '\n' ? ' ' : c);
    return line("");
  }
  Reply& integer(std::int64_t value) { return number(':', value); }
  Reply& bulk(std::string_view text) { return bulk_head(text.size()).line(text); }
  // The text and the end of line follow.
  Reply& bulk_head(std::size_t bytes) { return number('$', static_cast<std::int64_t>(bytes)); }
  Reply& verbatim(std::string_view text) {
    return resp3_ ? number('=', static_cast<std::int64_t>(text.size() + 4)).raw("txt:").line(text)
                  : bulk(text);
  }
  Reply& null() { return raw(resp3_ ? "_\r\n" : "$-1\r\n"); }
  Reply& array(std::size_t count) { return aggregate('*', count); }
  Reply& map(std::size_t pairs) {
    return resp3_ ? aggregate('%', pairs) : aggregate('*', 2 * pairs);
  }
  // Requires: RESP3.
  Reply& push(std::size_t count) { return aggregate('>', count); }

 private:
  Reply& aggregate(char type, std::size_t count) {
    return number(type, static_cast<std::int64_t>(count));
  }
  Reply& number(char type, std::int64_t value) {
    char text[24];
    const char* const end = std::to_chars(text, text + sizeof text, value).ptr;
    out_->push_back(type);
    return line({text, static_cast<std::size_t>(end - text)});
  }
  Reply& raw(std::string_view text) {
    out_->append(text);
    return *this;
  }
  Reply& line(std::string_view text) {
    out_->append(text).append("\r\n");
    return *this;
  }

  std::string* out_;
  bool resp3_;
};

}  // namespace kvferry::node
