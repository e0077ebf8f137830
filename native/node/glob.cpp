#include "node/glob.hpp"

#include <utility>

namespace kvferry::node {
namespace {

// Whether `c` is in the class that begins behind '['; moves `at` behind it.
bool in_class(std::string_view pattern, std::size_t& at, char c) noexcept {
  const auto wanted = static_cast<unsigned char>(c);
  const bool negated = at < pattern.size() && pattern[at] == '^';
  if (negated) ++at;
  bool found = false;
  while (at < pattern.size() && pattern[at] != ']') {
    if (pattern[at] == '\\' && at + 1 < pattern.size()) ++at;
    auto low = static_cast<unsigned char>(pattern[at++]);
    auto high = low;
    if (at + 1 < pattern.size() && pattern[at] == '-') {
      high = static_cast<unsigned char>(pattern[at + 1]);
      at += 2;
    }
    if (low > high) std::swap(low, high);
    found = found || (low <= wanted && wanted <= high);
  }
  if (at < pattern.size()) ++at;  // the bracket; one that is missing is taken as there
  return found != negated;
}

// Whether the one character at `at` of the pattern takes `c`; moves `at` behind it.
bool takes(std::string_view pattern, std::size_t& at, char c) noexcept {
  const char p = pattern[at++];
  if (p == '?') return true;
  if (p == '[') return in_class(pattern, at, c);
  if (p == '\\' && at < pattern.size()) return pattern[at++] == c;
  return p == c;
}

}  // namespace

bool glob_match(std::string_view pattern, std::string_view text) noexcept {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;  // behind the last one
  std::size_t star_text = 0;                  // where what it takes ends
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_text = t;
      continue;
    }
    std::size_t next = p;
    if (p < pattern.size() && takes(pattern, next, text[t])) {
      p = next;
      ++t;
      continue;
    }
    if (star == std::string_view::npos) return false;
    p = star;  // the last star takes one more
    t = ++star_text;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace kvferry::node
