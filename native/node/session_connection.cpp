// The commands of a session about connections: its own, and those of others.

#include <algorithm>
#include <array>
#include <string>

#include "node/numbers.hpp"
#include "node/session.hpp"

namespace kvferry::node {
namespace {

constexpr std::size_t kPrefixesMax = 64;
constexpr std::size_t kNameBytesMax = 256;  // of a client or its library

// One line of CLIENT LIST.
std::string line_of(const ClientEntry& client, UnixMs now) {
  return "id=" + std::to_string(client.id) + " addr=" + client.address + " name=" + client.name +
         " age=" + std::to_string(std::max<UnixMs>(now - client.since, 0) / 1000) +
         " flags=" + (client.tracking() ? "tB" : "N") + " db=0" + " user=" + client.user +
         " resp=" + std::to_string(client.protocol) + " lib-name=" + client.library +
         " lib-ver=" + client.library_version;
}

// Of a type of client; nothing: there is no such type. Here all are normal.
std::optional<bool> is_normal(std::string_view type) {
  if (same_word(type, "normal")) return true;
  constexpr std::array<std::string_view, 5> kOthers{"pubsub", "master", "primary", "replica",
                                                    "slave"};
  for (const std::string_view other : kOthers) {
    if (same_word(type, other)) return false;
  }
  return std::nullopt;
}

// Why a client may not give this as `what`; empty: it may.
std::string name_refusal(std::string_view name, std::string what) {
  if (name.size() > kNameBytesMax) {
    return "ERR " + what + " cannot be longer than " + std::to_string(kNameBytesMax) + " bytes.";
  }
  if (std::ranges::all_of(name, [](char c) { return c >= '!' && c <= '~'; })) return {};
  return "ERR " + what + " cannot contain spaces, newlines or special characters.";
}

}  // namespace

void Session::ping(const Arguments& arguments) {
  if (arguments.size() > 2) return fail("ERR wrong number of arguments for 'ping' command");
  if (arguments.size() == 2) {
    reply().bulk(arguments[1]);
  } else {
    reply().simple("PONG");
  }
}

void Session::echo(const Arguments& arguments) { reply().bulk(arguments[1]); }

void Session::quit(const Arguments&) {
  reply().simple("OK");
  closing_ = true;
}

void Session::select(const Arguments& arguments) {
  const auto database = number<std::int64_t>(arguments[1]);
  if (!database) return fail("ERR value is not an integer or out of range");
  if (*database != 0) return fail("ERR DB index is out of range");
  reply().simple("OK");
}

void Session::reset(const Arguments&) {
  resp3_ = false;
  leases_.clear();  // log_in() keeps those of the same user
  context_.clients.update(id_, [](ClientEntry& client) {
    client.name.clear();
    client.protocol = 2;
    client.prefixes.clear();
  });
  log_in(context_.access.anonymous(on_unix_));
  reply().simple("RESET");
}

void Session::auth(const Arguments& arguments) {
  if (arguments.size() > 3) return syntax_error();
  const bool named = arguments.size() == 3;
  const User* everybody = context_.access.find("default");
  if (!named && everybody != nullptr && !everybody->password) {
    return fail(
        "ERR AUTH <password> called without any password configured for the default user. Are you "
        "sure your configuration is correct?");
  }
  if (log_in(named ? arguments[1] : "default", arguments.back())) reply().simple("OK");
}

void Session::hello(const Arguments& arguments) {
  std::optional<std::int64_t> protocol;
  std::size_t at = 1;
  if (arguments.size() > 1) {
    protocol = number<std::int64_t>(arguments[at++]);
    if (!protocol) return fail("ERR Protocol version is not an integer or out of range");
    if (*protocol < 2 || *protocol > 3) return fail("NOPROTO unsupported protocol version");
  }
  std::size_t auth_at = 0;
  std::size_t name_at = 0;
  while (at < arguments.size()) {
    if (same_word(arguments[at], "AUTH") && at + 2 < arguments.size()) {
      auth_at = at + 1;
      at += 3;
    } else if (same_word(arguments[at], "SETNAME") && at + 1 < arguments.size()) {
      name_at = at + 1;
      at += 2;
    } else {
      return fail("ERR Syntax error in HELLO option '" + shown(arguments[at]) + "'");
    }
  }
  if (name_at != 0) {
    const std::string why = name_refusal(arguments[name_at], "Client names");
    if (!why.empty()) return fail(why);
  }
  if (auth_at != 0 && !log_in(arguments[auth_at], arguments[auth_at + 1])) return;
  if (user_ == nullptr) {
    return fail(context_.access.stranger(
        "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO "
        "<proto> AUTH <user> <pass> option can be used to authenticate the client and select the "
        "RESP protocol version at the same time"));
  }
  if (name_at != 0) set_name(arguments[name_at]);
  if (protocol) {
    resp3_ = *protocol == 3;
    context_.clients.update(id_, [&](ClientEntry& client) {
      client.protocol = static_cast<int>(*protocol);
      if (!resp3_) client.prefixes.clear();
    });
  }
  Reply out = reply();
  out.map(7).bulk("server").bulk("kvferry-node").bulk("version").bulk(kCommandsOf);
  out.bulk("proto").integer(resp3_ ? 3 : 2).bulk("id").integer(static_cast<std::int64_t>(id_));
  out.bulk("mode").bulk("standalone").bulk("role").bulk("master").bulk("modules").array(0);
}

void Session::set_name(std::string_view name) {
  context_.clients.update(id_, [&](ClientEntry& client) { client.name = name; });
}

// --- CLIENT -------------------------------------------------------------------------------------

void Session::client(const Arguments& arguments) {
  const std::string& word = arguments[1];
  if (same_word(word, "ID")) {
    if (has_arity(arguments, 2)) reply().integer(static_cast<std::int64_t>(id_));
  } else if (same_word(word, "SETNAME")) {
    if (!has_arity(arguments, 3)) return;
    const std::string why = name_refusal(arguments[2], "Client names");
    if (!why.empty()) return fail(why);
    set_name(arguments[2]);
    reply().simple("OK");
  } else if (same_word(word, "GETNAME")) {
    if (!has_arity(arguments, 2)) return;
    std::string name;
    context_.clients.update(id_, [&](const ClientEntry& client) { name = client.name; });
    if (name.empty()) {
      reply().null();
    } else {
      reply().bulk(name);
    }
  } else if (same_word(word, "SETINFO")) {
    if (!has_arity(arguments, 4)) return;
    const bool library = same_word(arguments[2], "LIB-NAME");
    if (!library && !same_word(arguments[2], "LIB-VER")) {
      return fail("ERR Unrecognized option '" + shown(arguments[2]) + "'");
    }
    const std::string why = name_refusal(arguments[3], lower(arguments[2]));
    if (!why.empty()) return fail(why);
    context_.clients.update(id_, [&](ClientEntry& client) {
      (library ? client.library : client.library_version) = arguments[3];
    });
    reply().simple("OK");
  } else if (same_word(word, "INFO")) {
    if (has_arity(arguments, 2)) client_info();
  } else if (same_word(word, "LIST")) {
    client_list(arguments);
  } else if (same_word(word, "KILL")) {
    client_kill(arguments);
  } else if (same_word(word, "TRACKING")) {
    client_tracking(arguments);
  } else {
    unknown_subcommand(arguments);
  }
}

void Session::client_info() {
  std::string line;
  context_.clients.update(id_, [&](const ClientEntry& client) { line = line_of(client, now_); });
  reply().verbatim(line + "\n");
}

void Session::client_list(const Arguments& arguments) {
  if (!user_->admin)
    return fail("NOPERM User " + user_->name +
                " has no permissions to run the 'client|list' command");
  std::vector<std::uint64_t> ids;
  bool none = false;
  if (arguments.size() > 2) {
    if (same_word(arguments[2], "TYPE") && arguments.size() > 3) {
      const auto known = is_normal(arguments[3]);
      if (!known) return fail("ERR Unknown client type '" + shown(arguments[3]) + "'");
      if (arguments.size() > 4) return syntax_error();
      none = !*known;
    } else if (same_word(arguments[2], "ID") && arguments.size() > 3) {
      for (std::size_t i = 3; i < arguments.size(); ++i) {
        const auto id = number<std::uint64_t>(arguments[i]);
        if (!id || *id == 0) return fail("ERR Invalid client ID");
        ids.push_back(*id);
      }
    } else {
      return syntax_error();
    }
  }
  std::string out;
  for (const ClientEntry& client : context_.clients.list()) {
    if (none || (!ids.empty() && std::ranges::find(ids, client.id) == ids.end())) continue;
    out += line_of(client, now_) + "\n";
  }
  reply().verbatim(out);
}

void Session::client_kill(const Arguments& arguments) {
  if (!user_->admin)
    return fail("NOPERM User " + user_->name +
                " has no permissions to run the 'client|kill' command");
  if (!has_arity(arguments, -3)) return;
  std::optional<std::uint64_t> id;
  std::string_view address, user;
  bool skip_me = true, none = false;
  const bool old_form = arguments.size() == 3;
  if (old_form) {
    address = arguments[2];
    skip_me = false;
  }
  for (std::size_t i = 2; !old_form && i < arguments.size(); i += 2) {
    if (i + 1 == arguments.size()) return syntax_error();
    const std::string& value = arguments[i + 1];
    if (same_word(arguments[i], "ID")) {
      const auto wanted = number<std::int64_t>(value);
      if (!wanted || *wanted < 1) return fail("ERR client-id should be greater than 0");
      id = static_cast<std::uint64_t>(*wanted);
    } else if (same_word(arguments[i], "ADDR")) {
      address = value;
    } else if (same_word(arguments[i], "USER")) {
      if (context_.access.find(value) == nullptr) {
        return fail("ERR No such user '" + shown(value) + "'");
      }
      user = value;
    } else if (same_word(arguments[i], "TYPE")) {
      const auto known = is_normal(value);
      if (!known) return fail("ERR Unknown client type '" + shown(value) + "'");
      none = !*known;
    } else if (same_word(arguments[i], "SKIPME") && same_word(value, "yes")) {
      skip_me = true;
    } else if (same_word(arguments[i], "SKIPME") && same_word(value, "no")) {
      skip_me = false;
    } else {
      return syntax_error();
    }
  }
  std::int64_t count = 0;
  for (const ClientEntry& client : context_.clients.list()) {
    const bool me = client.id == id_;
    if (none || (me && skip_me) || (id && client.id != *id) ||
        (!address.empty() && client.address != address) || (!user.empty() && client.user != user)) {
      continue;
    }
    ++count;
    if (me) {
      closing_ = true;  // after the answer
    } else {
      context_.clients.kill(client.id);
    }
  }
  if (!old_form) {
    reply().integer(count);
  } else if (count > 0) {
    reply().simple("OK");
  } else {
    fail("ERR No such client");
  }
}

void Session::client_tracking(const Arguments& arguments) {
  if (!has_arity(arguments, -3)) return;
  const bool on = same_word(arguments[2], "ON");
  if (!on && !same_word(arguments[2], "OFF")) return syntax_error();
  bool broadcast = false;
  std::vector<std::string> prefixes;
  for (std::size_t i = 3; i < arguments.size(); ++i) {
    if (same_word(arguments[i], "BCAST")) {
      broadcast = true;
    } else if (same_word(arguments[i], "PREFIX") && i + 1 < arguments.size()) {
      prefixes.push_back(arguments[++i]);
    } else {
      return syntax_error();
    }
  }
  if (on && !broadcast) return fail("ERR this node tracks with BCAST only");
  if (on && !resp3_) return fail("ERR tracking needs RESP3; say HELLO 3 first");
  if (prefixes.size() > kPrefixesMax) return fail("ERR too many prefixes");
  if (on && prefixes.empty()) prefixes.emplace_back();
  for (const std::string& prefix : prefixes) {
    if (!user_->may_read(prefix)) return fail("NOPERM No permissions to access a key");
    if (prefix.size() > context_.limits.key_bytes_max) {
      return fail("ERR a prefix is longer than any key");
    }
    for (const std::string& other : prefixes) {
      if (&prefix != &other && prefix.starts_with(other)) {
        return fail("ERR Prefix '" + shown(prefix) + "' overlaps with another provided " +
                    "prefix '" + shown(other) +
                    "'. Prefixes for a single client must not overlap.");
      }
    }
  }
  if (!on) prefixes.clear();
  context_.clients.update(id_, [&](ClientEntry& client) { client.prefixes = std::move(prefixes); });
  reply().simple("OK");
}

}  // namespace kvferry::node
