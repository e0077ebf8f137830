// The node for Python: started, asked, stopped.
//
// Lifetime: the node ends with stop() or with the object. In a forked child the object is an empty
// shell: its threads are the parent's.
// Threads: any. stop() may write the state for a while; it has released the GIL.

#include "node/node_server.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "codec/little_endian.hpp"
#include "config.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "on_demand_pages.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

class NodeOwner {
 public:
  explicit NodeOwner(std::unique_ptr<node::NodeServer> node) : node_(std::move(node)) {}
  NodeOwner(const NodeOwner&) = delete;
  NodeOwner& operator=(const NodeOwner&) = delete;
  ~NodeOwner() {
    if (::getpid() != process_) (void)node_.release();  // the parent's, with its threads
  }

  // Null once stopped.
  [[nodiscard]] node::NodeServer* get() const {
    return ::getpid() == process_ && !stopped_ ? node_.get() : nullptr;
  }
  [[nodiscard]] node::NodeServer& running() const {
    node::NodeServer* const node = get();
    if (node == nullptr) raise({Errc::kClosed, "the node was stopped, or is another process's"});
    return *node;
  }

  Outcome stop() {
    node::NodeServer* const node = get();
    if (node == nullptr) return Done{};
    stopped_ = true;
    const GilRelease released;
    return node->stop();
  }

 private:
  std::unique_ptr<node::NodeServer> node_;
  const pid_t process_ = ::getpid();
  bool stopped_ = false;
};

net::Endpoint endpoint_of(const nb::handle& item) {
  const auto [path, host, port] =
      nb::cast<std::tuple<std::string, std::string, std::uint16_t>>(item);
  net::Endpoint endpoint;
  endpoint.unix_path = path;
  endpoint.host = host;
  endpoint.port = port;
  return endpoint;
}

node::UserOptions user_of(const nb::dict& user) {
  node::UserOptions out;
  out.name = nb::cast<std::string>(user["name"]);
  if (!user["password"].is_none()) out.password = nb::cast<std::string>(user["password"]);
  out.read = nb::cast<std::vector<std::string>>(user["read"]);
  out.write = nb::cast<std::vector<std::string>>(user["write"]);
  out.admin = nb::cast<bool>(user["admin"]);
  out.on_unix = user.contains("on_unix") && nb::cast<bool>(user["on_unix"]);
  return out;
}

void start_node(NodeOwner* self, const nb::sequence& listen, std::size_t size_bytes,
                std::string policy, bool hugetlb, bool prefault, const nb::sequence& users,
                std::string state_file, std::size_t threads, std::string version,
                std::optional<std::size_t> connections_max, std::size_t in_flight_bytes_max,
                std::optional<std::size_t> value_bytes_max, std::optional<double> stall_timeout_s,
                bool lends, const nb::dict& tls) {
  node::NodeOptions options;
  options.lends = lends;
  options.tls = make_tls_config(tls);
  for (const nb::handle item : listen) options.listen.push_back(endpoint_of(item));
  for (const nb::handle item : users) {
    options.users.push_back(user_of(nb::cast<nb::dict>(item)));
  }
  options.store.size_bytes = size_bytes;
  options.store.policy = std::move(policy);
  options.store.arena = {.hugetlb = hugetlb, .prefault = prefault};
  options.state_file = std::move(state_file);
  options.threads = threads;
  options.connections_max = connections_max.value_or(options.connections_max);
  options.in_flight_bytes_max = in_flight_bytes_max;
  std::size_t& value_bytes = options.limits.request.value_bytes_max;
  value_bytes = value_bytes_max.value_or(value_bytes);
  if (stall_timeout_s) options.pace.window = from_seconds(*stall_timeout_s);
  options.version = std::move(version);
  Result<std::unique_ptr<node::NodeServer>> made = [&] {
    const GilRelease released;
    return node::NodeServer::open(std::move(options));
  }();
  new (self) NodeOwner(value_or_raise(std::move(made)));
}

nb::list endpoints(const NodeOwner& self) {
  nb::list out;
  for (const net::Endpoint& one : self.running().endpoints()) out.append(one.text());
  return out;
}

nb::dict stats(const NodeOwner& self) {
  const node::NodeServer& node = self.running();
  const node::ValuesUsage usage = node.usage();
  const node::Counters& counters = node.context().counters;
  const auto sum = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  nb::dict out;
  out["size_bytes"] = usage.size_bytes;
  out["used_bytes"] = usage.used_bytes;
  out["value_bytes"] = usage.value_bytes;
  out["in_flight_bytes"] = node.context().in_flight.bytes();
  out["keys"] = usage.keys;
  out["evicted"] = usage.evicted;
  out["expired"] = usage.expired;
  out["refused"] = usage.refused;
  out["leases"] = sum(counters.leases);
  out["leases_expired"] = sum(counters.leases_expired);
  out["busy"] = sum(counters.busy);
  out["commands"] = sum(counters.commands);
  out["hits"] = sum(counters.hits);
  out["misses"] = sum(counters.misses);
  out["clients"] = node.context().clients.count();
  out["connections"] = sum(counters.connections);
  out["rejected"] = sum(counters.rejected);
  out["slow_closed"] = sum(counters.slow_closed);
  out["silent_closed"] = sum(counters.silent_closed);
  out["hungry_closed"] = node.context().clients.hungry_closed();
  out["clients_bytes"] = node.context().clients.held_bytes();
  out["tls_refused"] = sum(counters.tls_refused);
  out["tls_files_refused"] = sum(counters.tls_files_refused);
  out["received_bytes"] = sum(counters.received_bytes);
  out["sent_bytes"] = sum(counters.sent_bytes);
  out["loaded"] = node.loaded().values;
  out["left_out"] = node.loaded().left_out;
  return out;
}

}  // namespace

void bind_node(nb::module_& module) {
  nb::class_<NodeOwner>(module, "Node", "A RESP server over values in memory.")
      .def("__init__", &start_node, nb::kw_only(), "listen"_a, "size_bytes"_a, "policy"_a,
           "hugetlb"_a, "prefault"_a, "users"_a, "state_file"_a, "threads"_a, "version"_a,
           "connections_max"_a = nb::none(), "in_flight_bytes_max"_a = 0,
           "value_bytes_max"_a = nb::none(), "stall_timeout_s"_a = nb::none(), "lends"_a = false,
           "tls"_a = nb::dict(),
           nb::sig("def __init__(self, *, listen: collections.abc.Sequence[tuple[str, str, int]], "
                   "size_bytes: int, "
                   "policy: str, hugetlb: bool, prefault: bool, users: "
                   "collections.abc.Sequence[dict[str, typing.Any]], "
                   "state_file: str, threads: int, version: str, "
                   "connections_max: int | None = None, in_flight_bytes_max: int = 0, "
                   "value_bytes_max: int | None = None, stall_timeout_s: float | None = None, "
                   "lends: bool = False, tls: dict[str, typing.Any] = {}) -> None"))
      .def(
          "lend",
          [](const NodeOwner& self, const CacheOwner& cache, const std::string& prefix,
             const nb::bytes& identity, std::size_t chunk_bytes) {
            node::NodeServer& node = self.running();
            if (!node.lends()) {
              raise({Errc::kInvalidArgument, "this node has a store of its own"});
            }
            if (identity.size() < sizeof(std::uint64_t)) {
              raise({Errc::kInvalidArgument, "an identity has at least 8 bytes"});
            }
            const auto* digest = reinterpret_cast<const std::byte*>(identity.c_str());
            value_or_raise(
                node.lend(cache.cache, prefix, codec::load_le<std::uint64_t>(digest), chunk_bytes));
          },
          "cache"_a, "prefix"_a, "identity"_a, "chunk_bytes"_a,
          "Lend the chunks of a cache, under names that begin with the prefix.")
      .def(
          "recall",
          [](const NodeOwner& self, const std::string& prefix) {
            return self.running().lends() && self.running().recall(prefix);
          },
          "prefix"_a, "Lend the cache of this prefix no more; whether it was.")
      .def(
          "mark",
          [](const NodeOwner& self, const std::string& prefix, const nb::bytes& text,
             double lent_s) {
            const Nanos lent = from_seconds(lent_s);
            return self.running().lends() &&
                   self.running().mark(prefix, {text.c_str(), text.size()}, monotonic_ns() + lent);
          },
          "prefix"_a, "text"_a, "lent_s"_a,
          "Have <prefix>generation be this text, and lend the cache for so long; whether it is "
          "lent.")
      .def(
          "set_agent",
          [](const NodeOwner& self, std::uint64_t incarnation, const nb::bytes& metadata) {
            self.running().set_agent(incarnation, {metadata.c_str(), metadata.size()});
          },
          "incarnation"_a, "metadata"_a,
          "Have readers reach the memory of this process: what LEASE AGENT answers.")
      .def("stop", [](NodeOwner& self) { value_or_raise(self.stop()); })
      .def("endpoints", &endpoints, nb::sig("def endpoints(self) -> list[str]"))
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, int]"));
}

}  // namespace kvferry
