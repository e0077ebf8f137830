#pragma once
// Access: who may connect, and which keys he may read and write, by their prefixes.
//
// Threads: any; nothing changes after construction. Passwords are kept as SHA-256.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "cache/hashes.hpp"

namespace kvferry::node {

struct UserOptions {
  std::string name;
  std::optional<std::string> password{};  // secret; nothing: any password, or none
  std::vector<std::string> read{};        // prefixes; an empty text is every key
  std::vector<std::string> write{};
  bool admin = false;    // settings, other clients
  bool on_unix = false;  // who comes over a Unix socket is this user before AUTH
};

struct User {
  std::string name;
  std::optional<cache::ChunkHash> password;
  std::vector<std::string> read;
  std::vector<std::string> write;
  bool admin = false;
  bool on_unix = false;

  [[nodiscard]] bool may_read(std::string_view key) const;
  [[nodiscard]] bool may_write(std::string_view key) const;
  // Whether there is any key that he may read, or write.
  [[nodiscard]] bool reads() const { return !read.empty(); }
  [[nodiscard]] bool writes() const { return !write.empty(); }
};

class Access {
 public:
  // Without users everybody may do everything.
  // Fails with: kInvalidArgument for two users of one name.
  static Result<Access> create(const std::vector<UserOptions>& users);

  // Who a client is before AUTH; null: nobody, and he must say first.
  [[nodiscard]] const User* anonymous(bool on_unix) const;
  // What a client hears who has not said who he is: an error, of that command or of any.
  [[nodiscard]] std::string_view stranger(std::string_view otherwise) const;
  // Null: no such user, or another password.
  [[nodiscard]] const User* check(std::string_view name, std::string_view password) const;
  [[nodiscard]] const User* find(std::string_view name) const;

 private:
  std::vector<User> users_;
};

}  // namespace kvferry::node
