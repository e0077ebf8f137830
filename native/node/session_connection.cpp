// The commands of a session about connections: its own, and those of others.

#include <algorithm>
#include <string>

#include "node/numbers.hpp"
#include "node/session.hpp"

namespace kvferry::node {
namespace {

constexpr std::size_t kPrefixesMax = 64;
constexpr std::size_t kNameBytesMax = 256;  // of a client

// One line of CLIENT LIST.
std::string line_of(const ClientEntry& client, UnixMs now) {
  return "id=" + std::to_string(client.id) + " addr=" + client.address + " name=" + client.name +
         " age=" + std::to_string(std::max<UnixMs>(now - client.since, 0) / 1000) +
         " flags=" + (client.tracking() ? "tB" : "N") + " db=0" + " user=" + client.user +
         " resp=" + std::to_string(client.protocol);
}

// Why a client may not have this name; empty: it may.
std::string name_refusal(std::string_view name) {
  if (name.size() > kNameBytesMax) {
    return "ERR Client names cannot be longer than " + std::to_string(kNameBytesMax) + " bytes.";
  }
  if (std::ranges::all_of(name, [](char c) { return c >= '!' && c <= '~'; })) return {};
  return "ERR Client names cannot contain spaces, newlines or special characters.";
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

void Session::select(const Arguments& arguments) {
  const auto database = number<std::int64_t>(arguments[1]);
  if (!database) return fail("ERR value is not an integer or out of range");
  if (*database != 0) return fail("ERR DB index is out of range");
  reply().simple("OK");
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
    const std::string why = name_refusal(arguments[name_at]);
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
    const std::string why = name_refusal(arguments[2]);
    if (!why.empty()) return fail(why);
    set_name(arguments[2]);
    reply().simple("OK");
  } else if (same_word(word, "INFO")) {
    if (has_arity(arguments, 2)) client_info();
  } else if (same_word(word, "LIST")) {
    if (has_arity(arguments, 2) && is_admin("client|list")) client_list();
  } else if (same_word(word, "KILL")) {
    if (has_arity(arguments, 4) && is_admin("client|kill")) client_kill(arguments);
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

void Session::client_list() {
  std::string out;
  for (const ClientEntry& client : context_.clients.list()) out += line_of(client, now_) + "\n";
  reply().verbatim(out);
}

void Session::client_kill(const Arguments& arguments) {
  if (!same_word(arguments[2], "ID")) return syntax_error();
  const auto id = number<std::int64_t>(arguments[3]);
  if (!id || *id < 1) return fail("ERR client-id should be greater than 0");
  // A connection does not end itself, as SKIPME of Valkey has it.
  const auto wanted = static_cast<std::uint64_t>(*id);
  reply().integer(wanted != id_ && context_.clients.kill(wanted) ? 1 : 0);
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
