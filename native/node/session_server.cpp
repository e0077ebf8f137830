// The commands of a session about the node: INFO, CONFIG.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "node/glob.hpp"
#include "node/session.hpp"

namespace kvferry::node {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string text_of(const std::atomic<std::uint64_t>& counter) {
  return std::to_string(counter.load(std::memory_order_relaxed));
}

Pairs parameters(const Context& context) {
  return {
      {"appendonly", "no"},
      {"bind", context.facts.bind},
      {"io-threads", std::to_string(context.facts.threads)},
      {"maxclients", std::to_string(context.clients.connections_max())},
      {"maxmemory", std::to_string(context.values.usage().size_bytes)},
      {"maxmemory-policy", lower(context.facts.policy)},
      {"port", std::to_string(context.facts.port)},
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
        {"process_id", std::to_string(::getpid())},
        {"run_id", context.facts.run_id},
        {"tcp_port", number_of(context.facts.port)},
        {"io_threads", std::to_string(context.facts.threads)},
        {"uptime_in_seconds",
         std::to_string(std::max<UnixMs>(now - context.facts.since, 0) / 1000)}}},
      {"Clients",
       {{"connected_clients", number_of(context.clients.count())},
        {"maxclients", number_of(context.clients.connections_max())},
        {"tracking_clients", number_of(context.clients.tracking_count())}}},
      {"Memory",
       {{"used_memory", number_of(usage.used_bytes)},
        {"used_memory_dataset", number_of(usage.value_bytes)},
        {"in_flight_bytes", number_of(context.in_flight.bytes())},
        {"clients_bytes", number_of(context.clients.held_bytes())},
        {"maxmemory", number_of(usage.size_bytes)},
        {"maxmemory_policy", lower(context.facts.policy)}}},
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
      {"Replication", {{"role", "master"}}},
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
  if (!same_word(arguments[1], "GET")) return unknown_subcommand(arguments);
  if (!has_arity(arguments, -3)) return;
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

}  // namespace kvferry::node
