#include "node/access.hpp"

#include <algorithm>

#include "cache/chunk_hash.hpp"

namespace kvferry::node {
namespace {

// Where a user is known by his socket, nobody can log in over TCP.
constexpr std::string_view kStranger =
    "NOAUTH Authentication required: this port lends to processes that share its owner's runtime "
    "folder, over the Unix socket there; others need one p2p_secret_file with it";

bool any_prefix(const std::vector<std::string>& prefixes, std::string_view key) {
  return std::ranges::any_of(prefixes,
                             [&](const std::string& prefix) { return key.starts_with(prefix); });
}

}  // namespace

bool User::may_read(std::string_view key) const { return any_prefix(read, key); }
bool User::may_write(std::string_view key) const { return any_prefix(write, key); }

Result<Access> Access::create(const std::vector<UserOptions>& users) {
  Access access;
  if (users.empty()) {
    access.users_.push_back({"default", std::nullopt, {""}, {""}, true});
    return access;
  }
  for (const UserOptions& user : users) {
    if (access.find(user.name) != nullptr) {
      return Error{Errc::kInvalidArgument, "two users are called '" + user.name + "'"};
    }
    User made{user.name, std::nullopt, user.read, user.write, user.admin, user.on_unix};
    if (user.password) {
      const auto hash = cache::hash_of(as_bytes(*user.password));
      if (!hash) return hash.error();
      made.password = *hash;
    }
    access.users_.push_back(std::move(made));
  }
  return access;
}

const User* Access::find(std::string_view name) const {
  const auto at = std::ranges::find(users_, name, &User::name);
  return at == users_.end() ? nullptr : &*at;
}

const User* Access::anonymous(bool on_unix) const {
  const auto near = std::ranges::find(users_, true, &User::on_unix);
  if (on_unix && near != users_.end()) return &*near;
  const User* user = find("default");
  return user != nullptr && !user->password ? user : nullptr;
}

std::string_view Access::stranger(std::string_view otherwise) const {
  return std::ranges::any_of(users_, &User::on_unix) ? kStranger : otherwise;
}

const User* Access::check(std::string_view name, std::string_view password) const {
  // Digests are compared, so that the time of it tells nothing of the password.
  const auto hash = cache::hash_of(as_bytes(password));
  const User* user = find(name);
  if (user == nullptr || !hash) return nullptr;
  return !user->password || *user->password == *hash ? user : nullptr;
}

}  // namespace kvferry::node
