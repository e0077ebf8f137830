#include "node/commands.hpp"

#include <strings.h>

#include <algorithm>
#include <array>

#include "node/session.hpp"

namespace kvferry::node {
namespace {

using C = CommandSpec;
using S = Session;

constexpr std::array kCommands{
    C{"AUTH", -2, C::kNoAuth, 0, 0, &S::auth},
    C{"CLIENT", -2, C::kNone, 0, 0, &S::client},
    C{"CONFIG", -2, C::kNone, 0, 0, &S::config},
    C{"DBSIZE", 1, C::kRead, 0, 0, &S::dbsize},
    C{"DEL", -2, C::kWrite, 1, -1, &S::del},
    C{"EXISTS", -2, C::kRead, 1, -1, &S::exists},
    C{"FLUSHALL", -1, C::kWrite | C::kAdmin, 0, 0, &S::flush},
    C{"FLUSHDB", -1, C::kWrite | C::kAdmin, 0, 0, &S::flush},
    C{"GET", 2, C::kRead, 1, 1, &S::get},
    C{"HELLO", -1, C::kNoAuth, 0, 0, &S::hello},
    C{"INFO", -1, C::kNone, 0, 0, &S::info},
    C{"LEASE", -2, C::kRead, 2, -1, &S::lease},
    C{"PING", -1, C::kNone, 0, 0, &S::ping},
    C{"PTTL", 2, C::kRead, 1, 1, &S::pttl},
    C{"RELEASE", -2, C::kRead, 0, 0, &S::release},
    C{"SCAN", -2, C::kRead, 0, 0, &S::scan},
    C{"SELECT", 2, C::kNone, 0, 0, &S::select},
    C{"SET", -3, C::kWrite, 1, 1, &S::set},
    C{"STRLEN", 2, C::kRead, 1, 1, &S::strlen},
    C{"TOUCH", -2, C::kRead, 1, -1, &S::exists},
    C{"TTL", 2, C::kRead, 1, 1, &S::ttl},
    C{"TYPE", 2, C::kRead, 1, 1, &S::type},
    C{"UNLINK", -2, C::kWrite, 1, -1, &S::del},
};

// A few hundred bytes on the stack are not worth it for a word that is longer.
constexpr std::size_t kNameBytesMax = 16;

bool less(std::string_view a, std::string_view b) noexcept { return a < b; }

}  // namespace

const CommandSpec* find_command(std::string_view name) noexcept {
  std::array<char, kNameBytesMax> upper{};
  if (name.size() > upper.size()) return nullptr;
  std::ranges::transform(name, upper.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  const std::string_view wanted{upper.data(), name.size()};
  const auto at = std::ranges::lower_bound(kCommands, wanted, less, &CommandSpec::name);
  return at != kCommands.end() && at->name == wanted ? &*at : nullptr;
}

bool same_word(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

std::string shown(std::string_view text, std::size_t bytes_max) {
  text = text.substr(0, bytes_max);
  return std::string(text.substr(0, text.find('\0')));
}

}  // namespace kvferry::node
