#pragma once
// Commands: the table of what a node understands.
//
// Source: the JSON files under src/commands of Valkey, for arities and positions of keys.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::node {

class Session;
using Arguments = std::vector<std::string>;

struct CommandSpec {
  enum Flags : std::uint8_t {
    kNone = 0,
    kRead = 1,    // its keys must be readable
    kWrite = 2,   // its keys must be writable
    kAdmin = 4,   // for administrators
    kNoAuth = 8,  // before AUTH too
  };

  std::string_view name;  // in capitals
  int arity;              // with the name; -2: two or more
  std::uint8_t flags;
  int first_key, last_key;  // positions; 0: none, -1: the last argument
  void (Session::*run)(const Arguments&);
};

// By its name in any case; null: there is none.
[[nodiscard]] const CommandSpec* find_command(std::string_view name) noexcept;

[[nodiscard]] bool same_word(std::string_view a, std::string_view b) noexcept;
[[nodiscard]] std::string lower(std::string_view text);

inline constexpr std::size_t kShownBytesMax = 128;
// What an error repeats of an argument; like Valkey it ends at a zero byte.
[[nodiscard]] std::string shown(std::string_view text, std::size_t bytes_max = kShownBytesMax);

}  // namespace kvferry::node
