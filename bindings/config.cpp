#include "config.hpp"

#include <nanobind/stl/string.h>

#include <string>
#include <string_view>

#include "errors.hpp"

namespace nb = nanobind;

namespace kvferry {
namespace {

class Reader {
 public:
  explicit Reader(const nb::dict& settings) : settings_(settings) {}

  template <typename T>
  void get(const char* name, T& field) const {
    if (has(name)) field = nb::cast<T>(settings_[name]);
  }
  void get_seconds(const char* name, Nanos& field) const {
    if (has(name)) field = from_seconds(nb::cast<double>(settings_[name]));
  }
  [[nodiscard]] std::string word(const char* name) const {
    return has(name) ? nb::cast<std::string>(settings_[name]) : std::string();
  }

  [[nodiscard]] bool is_on(const char* name) const {
    return has(name) && nb::cast<bool>(settings_[name]);
  }
  [[nodiscard]] bool has(const char* name) const {
    return settings_.contains(name) && !settings_[name].is_none();
  }

 private:
  const nb::dict& settings_;
};

}  // namespace

redis::Config make_config(const nb::dict& settings) {
  const Reader reader(settings);
  redis::Config config;
  reader.get("host", config.endpoint.host);
  reader.get("port", config.endpoint.port);
  reader.get("unix_path", config.endpoint.unix_path);
  reader.get("username", config.username);
  reader.get("password", config.password);
  reader.get("db", config.database);
  reader.get("protocol", config.protocol);
  reader.get("client_name", config.client_name);
  reader.get("connections", config.connections);
  reader.get("workers", config.workers);
  reader.get_seconds("timeout_s", config.timeout);
  reader.get("floor_rate_bytes_s", config.floor_rate_bytes_per_s);
  reader.get_seconds("connect_timeout_s", config.connect_timeout);
  reader.get_seconds("stall_timeout_s", config.stall_timeout);
  reader.get_seconds("reconnect_min_s", config.reconnect_min);
  reader.get_seconds("reconnect_max_s", config.reconnect_max);
  reader.get("attempts_max", config.attempts_max);
  reader.get("window_bytes", config.window_bytes);
  reader.get("value_size_bytes_max", config.value_bytes_max);
  reader.get("drain_bytes_max", config.drain_bytes_max);

  const std::string same_host = reader.word("same_host");
  if (same_host == "tcp" || reader.is_on("tls")) config.same_host = redis::SameHostWay::kTcp;
  if (same_host == "unix") config.same_host = redis::SameHostWay::kUnix;
  const std::string topology = reader.word("topology");
  if (topology == "cluster") config.topology = redis::Topology::kCluster;
  if (topology == "sentinel") config.topology = redis::Topology::kSentinel;
  if (reader.has("endpoints")) {  // beyond the first: pairs of host and port
    for (const nb::handle pair : settings["endpoints"]) {
      config.nodes.push_back({.host = nb::cast<std::string>(pair[0]),
                              .port = nb::cast<std::uint16_t>(pair[1]),
                              .unix_path = {}});
    }
  }
  reader.get("sentinel_master", config.sentinel_master);
  reader.get("sentinel_username", config.sentinel_username);
  reader.get("sentinel_password", config.sentinel_password);
  const std::string read_from = reader.word("read_from");
  if (read_from == "replica") config.read_from = redis::ReadFrom::kReplica;
  if (read_from == "az") config.read_from = redis::ReadFrom::kZone;
  reader.get("availability_zone", config.availability_zone);
  reader.get("nodes_max", config.nodes_max);
  reader.get_seconds("topology_refresh_s", config.topology_refresh);
  if (reader.has("presence_prefix")) config.presence_prefix = reader.word("presence_prefix");
  reader.get("presence_keys_max", config.presence_keys_max);
  return config;
}

net::TlsConfig make_tls_config(const nb::dict& settings) {
  const Reader reader(settings);
  net::TlsConfig tls;
  reader.get("tls", tls.enabled);
  reader.get("tls_ca_file", tls.ca_file);
  reader.get("tls_cert_file", tls.cert_file);
  reader.get("tls_key_file", tls.key_file);
  reader.get("tls_server_name", tls.server_name);
  reader.get("ktls", tls.ktls);
  const std::string verify = reader.word("tls_verify");
  if (verify == "ca") tls.verify = net::TlsVerify::kCa;
  if (verify == "none") tls.verify = net::TlsVerify::kNone;
  return tls;
}

}  // namespace kvferry
