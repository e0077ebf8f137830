// The commands of a session about the node: INFO, CONFIG, COMMAND, FUNCTION.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "node/glob.hpp"
#include "node/numbers.hpp"
#include "node/session.hpp"

namespace kvferry::node {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kMaxClients = "maxclients";
constexpr std::size_t kNamesMax = 1024;  // of one COMMAND

std::string text_of(const std::atomic<std::uint64_t>& counter) {
  return std::to_string(counter.load(std::memory_order_relaxed));
}

Pairs parameters(const Context& context) {
  return {
      {"appendonly", "no"},
      {"bind", context.facts.bind},
      {"databases", "1"},
      {"io-threads", std::to_string(context.facts.threads)},
      {std::string(kMaxClients), std::to_string(context.clients.connections_max())},
      {"maxmemory", std::to_string(context.values.usage().size_bytes)},
      {"maxmemory-policy", lower(context.facts.policy)},
      {"port", std::to_string(context.facts.port)},
      {"proto-max-bulk-len", std::to_string(context.limits.request.value_bytes_max)},
      {"save", ""},
      {"timeout", "0"},
      {"unixsocket", context.facts.unix_path},
  };
}

std::string seconds_of(const timeval& time) {
  return std::to_string(static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6);
}

// Of the whole process, which may do other things as well.
Pairs cpu_time() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return {{"used_cpu_sys", seconds_of(used.ru_stime)},
          {"used_cpu_user", seconds_of(used.ru_utime)}};
}

struct Section {
  std::string_view name;
  Pairs pairs;
};

std::vector<Section> sections(const Context& context, UnixMs now) {
  const ValuesUsage usage = context.values.usage();
  const Counters& counters = context.counters;
  const auto number_of = [](std::uint64_t value) { return std::to_string(value); };
  std::vector<Section> out{
      {"Server",
       {{"server_name", "kvferry-node"},
        {"redis_version", std::string(kCommandsOf)},
        {"kvferry_version", context.facts.version},
        {"redis_mode", "standalone"},
        {"arch_bits", "64"},
        {"process_id", std::to_string(::getpid())},
        {"run_id", context.facts.run_id},
        {"tcp_port", number_of(context.facts.port)},
        {"io_threads", std::to_string(context.facts.threads)},
        {"uptime_in_seconds",
         std::to_string(std::max<UnixMs>(now - context.facts.since, 0) / 1000)}}},
      {"Clients",
       {{"connected_clients", number_of(context.clients.count())},
        {"maxclients", number_of(context.clients.connections_max())},
        {"blocked_clients", "0"},
        {"tracking_clients", number_of(context.clients.tracking_count())}}},
      {"Memory",
       {{"used_memory", number_of(usage.used_bytes)},
        {"used_memory_dataset", number_of(usage.value_bytes)},
        {"in_flight_bytes", number_of(context.in_flight.bytes())},
        {"clients_bytes", number_of(context.clients.held_bytes())},
        {"maxmemory", number_of(usage.size_bytes)},
        {"maxmemory_policy", lower(context.facts.policy)}}},
      {"Persistence", {{"loading", "0"}}},
      {"Stats",
       {{"total_connections_received", text_of(counters.connections)},
        {"total_commands_processed", text_of(counters.commands)},
        {"total_net_input_bytes", text_of(counters.received_bytes)},
        {"total_net_output_bytes", text_of(counters.sent_bytes)},
        {"rejected_connections", text_of(counters.rejected)},
        {"slow_clients_closed", text_of(counters.slow_closed)},
        {"silent_clients_closed", text_of(counters.silent_closed)},
        {"hungry_clients_closed", number_of(context.clients.hungry_closed())},
        {"connections_failed", text_of(counters.failed)},
        {"tls_refused", text_of(counters.tls_refused)},
        {"tls_files_refused", text_of(counters.tls_files_refused)},
        {"leases", text_of(counters.leases)},
        {"leases_expired", text_of(counters.leases_expired)},
        {"busy_replies", text_of(counters.busy)},
        {"refused_writes", number_of(usage.refused)},
        {"expired_keys", number_of(usage.expired)},
        {"evicted_keys", number_of(usage.evicted)},
        {"keyspace_hits", text_of(counters.hits)},
        {"keyspace_misses", text_of(counters.misses)}}},
      {"CPU", cpu_time()},
      {"Replication", {{"role", "master"}, {"connected_slaves", "0"}}},
      {"Cluster", {{"cluster_enabled", "0"}}},
      {"Keyspace", {}},
  };
  if (usage.keys > 0) {
    out.back().pairs = {{"db0", "keys=" + number_of(usage.keys) +
                                    ",expires=" + number_of(usage.expiring) + ",avg_ttl=0"}};
  }
  return out;
}

}  // namespace

void Session::info(const Arguments& arguments) {
  const auto wanted = [&](std::string_view name) {
    if (arguments.size() == 1) return true;
    return std::any_of(arguments.begin() + 1, arguments.end(), [&](const std::string& word) {
      return same_word(word, name) || same_word(word, "all") || same_word(word, "everything") ||
             same_word(word, "default");
    });
  };
  std::string out;
  for (const Section& section : sections(context_, now_)) {
    if (!wanted(section.name)) continue;
    if (!out.empty()) out += "\r\n";
    out += "# " + std::string(section.name) + "\r\n";
    for (const auto& [name, value] : section.pairs) out += name + ":" + value + "\r\n";
  }
  reply().verbatim(out);
}

void Session::config(const Arguments& arguments) {
  if (same_word(arguments[1], "GET")) {
    if (has_arity(arguments, -3)) config_get(arguments);
  } else if (same_word(arguments[1], "SET")) {
    if (has_arity(arguments, -4)) config_set(arguments);
  } else {
    unknown_subcommand(arguments);
  }
}

void Session::config_get(const Arguments& arguments) {
  Pairs found;
  for (const auto& pair : parameters(context_)) {
    const bool wanted = std::any_of(
        arguments.begin() + 2, arguments.end(),
        [&](const std::string& pattern) { return glob_match(lower(pattern), pair.first); });
    if (wanted) found.push_back(pair);
  }
  Reply out = reply();
  out.map(found.size());
  for (const auto& [name, value] : found) out.bulk(name).bulk(value);
}

// The number of connections can be changed. Of the others only what they are already is accepted,
// which is what tools write that put back what they found.
void Session::config_set(const Arguments& arguments) {
  if (!user_->admin) {
    return fail("NOPERM User " + user_->name +
                " has no permissions to run the 'config|set' command");
  }
  if (arguments.size() % 2 != 0) return syntax_error();
  const Pairs known = parameters(context_);
  std::optional<std::size_t> connections;
  for (std::size_t i = 2; i < arguments.size(); i += 2) {
    const std::string name = lower(arguments[i]);
    const auto at = std::ranges::find(known, name, &Pairs::value_type::first);
    if (at == known.end()) {
      return fail("ERR Unknown option or number of arguments for CONFIG SET - '" +
                  shown(arguments[i]) + "'");
    }
    for (std::size_t later = i + 2; later < arguments.size(); later += 2) {
      if (!same_word(name, arguments[later])) continue;
      return fail("ERR CONFIG SET failed (possibly related to argument '" + name +
                  "') - duplicate parameter");
    }
    if (name == kMaxClients) {
      connections = number<std::size_t>(arguments[i + 1]);
      if (!connections || *connections == 0) {
        return fail("ERR CONFIG SET failed (possibly related to argument '" + name +
                    "') - argument must be a number above 0");
      }
    } else if (!same_word(at->second, arguments[i + 1])) {
      return fail("ERR CONFIG SET failed (possibly related to argument '" + name +
                  "') - can't set immutable config");
    }
  }
  if (connections) context_.clients.set_connections_max(*connections);
  reply().simple("OK");
}

void Session::function(const Arguments& arguments) {
  if (!same_word(arguments[1], "FLUSH")) return unknown_subcommand(arguments);
  if (arguments.size() > 3) {
    return fail("ERR unknown subcommand or wrong number of arguments for '" + shown(arguments[1]) +
                "'. Try FUNCTION HELP.");
  }
  if (arguments.size() == 3 && !same_word(arguments[2], "SYNC") &&
      !same_word(arguments[2], "ASYNC")) {
    return fail("ERR FUNCTION FLUSH only supports SYNC|ASYNC option");
  }
  reply().simple("OK");
}

void Session::command(const Arguments& arguments) {
  const bool listing = arguments.size() == 1;
  const bool docs = !listing && same_word(arguments[1], "DOCS");
  if (!listing && same_word(arguments[1], "COUNT")) {
    if (!has_arity(arguments, 2)) return;
    reply().integer(static_cast<std::int64_t>(all_commands().size()));
    return;
  }
  if (!listing && !docs && !same_word(arguments[1], "INFO")) return unknown_subcommand(arguments);
  if (arguments.size() > kNamesMax) return fail("ERR too many names");
  std::vector<const CommandSpec*> wanted;  // null: a name that is none
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    const CommandSpec* found = find_command(arguments[i]);
    if (found != nullptr || !docs) wanted.push_back(found);
  }
  if (arguments.size() <= 2) {
    for (const CommandSpec& one : all_commands()) wanted.push_back(&one);
  }
  Reply out = reply();
  docs ? out.map(wanted.size()) : out.array(wanted.size());
  for (const CommandSpec* one : wanted) {
    if (one == nullptr) {
      out.null();
    } else if (docs) {
      out.bulk(lower(one->name)).map(2).bulk("summary").bulk(one->summary);
      out.bulk("group").bulk(one->first_key != 0 ? "string" : "server");
    } else {
      const bool writes = (one->flags & CommandSpec::kWrite) != 0;
      const bool reads = (one->flags & CommandSpec::kRead) != 0;
      out.array(10).bulk(lower(one->name)).integer(one->arity);
      out.set(writes || reads ? 1 : 0);
      if (writes || reads) out.simple(writes ? "write" : "readonly");
      out.integer(one->first_key).integer(one->last_key).integer(one->first_key != 0 ? 1 : 0);
      out.set(0).array(0).array(0).array(0);
    }
  }
}

}  // namespace kvferry::node
