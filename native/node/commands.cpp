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
    C{"AUTH", -2, C::kNoAuth, 0, 0, &S::auth, "Authenticates the connection."},
    C{"CLIENT", -2, C::kGroup, 0, 0, &S::client, "Commands about connections."},
    C{"COMMAND", -1, C::kGroup, 0, 0, &S::command, "Describes the commands."},
    C{"CONFIG", -2, C::kGroup, 0, 0, &S::config, "Reads and changes settings."},
    C{"DBSIZE", 1, C::kRead, 0, 0, &S::dbsize, "Returns the number of keys."},
    C{"DEL", -2, C::kWrite, 1, -1, &S::del, "Deletes one or more keys."},
    C{"ECHO", 2, C::kNone, 0, 0, &S::echo, "Returns the given string."},
    C{"EXISTS", -2, C::kRead, 1, -1, &S::exists, "Determines whether one or more keys exist."},
    C{"EXPIRE", -3, C::kWrite, 1, 1, &S::expire, "Sets the time to live of a key in seconds."},
    C{"FLUSHALL", -1, C::kWrite | C::kAdmin, 0, 0, &S::flush, "Removes all keys."},
    C{"FLUSHDB", -1, C::kWrite | C::kAdmin, 0, 0, &S::flush, "Removes all keys."},
    C{"FUNCTION", -2, C::kGroup | C::kAdmin, 0, 0, &S::function, "Has nothing to flush."},
    C{"GET", 2, C::kRead, 1, 1, &S::get, "Returns the string value of a key."},
    C{"HELLO", -1, C::kNoAuth, 0, 0, &S::hello, "Handshakes with the server."},
    C{"INFO", -1, C::kNone, 0, 0, &S::info, "Returns information and statistics."},
    C{"KEYS", 2, C::kRead, 0, 0, &S::keys, "Returns all key names that match a pattern."},
    C{"LEASE", -2, C::kRead, 2, -1, &S::lease, "Holds values for one-sided reads."},
    C{"MEMORY", -2, C::kGroup | C::kRead, 0, 0, &S::memory, "Estimates the memory of a key."},
    C{"PERSIST", 2, C::kWrite, 1, 1, &S::persist, "Removes the time to live of a key."},
    C{"PEXPIRE", -3, C::kWrite, 1, 1, &S::pexpire, "Sets the time to live in milliseconds."},
    C{"PING", -1, C::kNone, 0, 0, &S::ping, "Returns the server's liveliness response."},
    C{"PTTL", 2, C::kRead, 1, 1, &S::pttl, "Returns the time to live in milliseconds."},
    C{"QUIT", -1, C::kNoAuth, 0, 0, &S::quit, "Closes the connection."},
    C{"RELEASE", -2, C::kRead, 0, 0, &S::release, "Ends leases of this connection."},
    C{"RESET", 1, C::kNoAuth, 0, 0, &S::reset, "Resets the connection."},
    C{"SCAN", -2, C::kRead, 0, 0, &S::scan, "Iterates over the key names."},
    C{"SELECT", 2, C::kNone, 0, 0, &S::select, "Changes the selected database."},
    C{"SET", -3, C::kWrite, 1, 1, &S::set, "Sets the string value of a key."},
    C{"STRLEN", 2, C::kRead, 1, 1, &S::strlen, "Returns the length of a string value."},
    C{"TOUCH", -2, C::kRead, 1, -1, &S::exists, "Tells how many keys exist, and uses them."},
    C{"TTL", 2, C::kRead, 1, 1, &S::ttl, "Returns the time to live in seconds."},
    C{"TYPE", 2, C::kRead, 1, 1, &S::type, "Determines the type of a value."},
    C{"UNLINK", -2, C::kWrite, 1, -1, &S::del, "Deletes one or more keys."},
};

// A few hundred bytes on the stack are not worth it for a word that is longer.
constexpr std::size_t kNameBytesMax = 16;

bool less(std::string_view a, std::string_view b) noexcept { return a < b; }

}  // namespace

std::span<const CommandSpec> all_commands() noexcept { return kCommands; }

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
