// The client for Python: one call per batch, in either of two ways. submit() returns at once and
// the batch comes back through drain(); run() waits without the GIL.
//
// Lifetime: buffers of a submitted batch stay leased until it is drained. An object that was
// forked away, or whose process exits with work in flight, never joins threads it does not have.

#include "client.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "config.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "presence.hpp"
#include "redis/link.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

using redis::Batch;

std::shared_ptr<net::Transport> make_transport(const nb::dict& settings,
                                               const std::shared_ptr<LogSink>& log) {
  net::TlsConfig tls = make_tls_config(settings);
  if (!tls.enabled) return net::plain_transport();
  const auto notify = [log](LogLevel level, std::string text) {
    log->push(level, std::move(text));
  };
  return net::tls_transport(value_or_raise(net::TlsContext::open(std::move(tls), notify)));
}

// Counters of a node: the name of each for Python, and where it is.
using Counter = std::atomic<std::uint64_t> redis::Stats::*;
constexpr std::pair<const char*, Counter> kCounters[] = {
    {"bytes_received", &redis::Stats::bytes_received},
    {"content_received", &redis::Stats::content_received},
    {"bytes_sent", &redis::Stats::bytes_sent},
    {"receives", &redis::Stats::receives},
    {"sends", &redis::Stats::sends},
    {"commands_settled", &redis::Stats::commands_settled},
    {"commands_retried", &redis::Stats::commands_retried},
    {"connections_opened", &redis::Stats::connections_opened},
    {"connections_lost", &redis::Stats::connections_lost},
    {"dials_failed", &redis::Stats::dials_failed},
    {"values_corrupt", &redis::Stats::values_corrupt},
};

// A bulk is bytes, a line of text str, an error inside a reply None, and a map a flat list.
nb::object to_python(const resp::Value& value) {
  using resp::Type;
  switch (value.type) {
    case Type::kSimple:
    case Type::kDouble:
    case Type::kBigNumber:
      return readable(value.text);
    case Type::kBulk:
    case Type::kVerbatim:
      return nb::bytes(value.text.data(), value.text.size());
    case Type::kInteger:
      return nb::int_(value.integer);
    case Type::kBoolean:
      return nb::bool_(value.integer != 0);
    case Type::kArray:
    case Type::kSet:
    case Type::kMap: {
      nb::list items;
      for (const resp::Value& each : value.items) items.append(to_python(each));
      return items;
    }
    default:
      return nb::none();
  }
}

// Those of some nodes, added up.
struct Totals {
  explicit Totals(const redis::Stats& stats) { add(stats); }

  void add(const redis::Stats& stats) {
    for (std::size_t at = 0; at < sums.size(); ++at) sums[at] += stats.*kCounters[at].second;
    for (std::size_t fault = 0; fault < refused.size(); ++fault) {
      refused[fault] += stats.refused[fault];
    }
  }
  [[nodiscard]] nb::dict to_python() const {
    nb::dict out;
    for (std::size_t at = 0; at < sums.size(); ++at) out[kCounters[at].first] = sums[at];
    out["connections_up"] = connections_up;
    out["connections_unix"] = connections_unix;
    for (std::size_t fault = 1; fault < refused.size(); ++fault) {
      std::string cause(name(static_cast<codec::FrameFault>(fault)));
      std::ranges::replace(cause, ' ', '_');
      out[("refused_" + cause).c_str()] = refused[fault];
    }
    return out;
  }

  std::array<std::uint64_t, std::size(kCounters)> sums{};
  std::array<std::uint64_t, codec::kFrameFaultsCount> refused{};
  int connections_up = 0;
  int connections_unix = 0;
};

}  // namespace

PyClient::PyClient(const nb::dict& settings, const PyCredentials* credentials)
    : client_(value_or_raise(
          redis::Client::open(make_config(settings), make_transport(settings, tls_log_),
                              credentials == nullptr ? nullptr : credentials->source()))) {}

PyClient::~PyClient() {
  if (client_->forked()) {
    // Its threads exist in the parent only: nothing here can be joined or trusted.
    [[maybe_unused]] auto* leaked = new std::shared_ptr<redis::Client>(std::move(client_));
    return;
  }
  close();
}

std::uint64_t PyClient::submit(int verb, nb::handle keys, nb::handle buffers, double timeout_s,
                               std::int64_t ttl_ms, bool prefix, nb::handle identity,
                               std::size_t value_size_bytes, int codec) {
  std::unique_ptr<Lease> lease;
  const auto batch = build(verb, keys, buffers, timeout_s, ttl_ms, prefix, identity,
                           value_size_bytes, codec, lease);
  return value_or_raise(leases_.keep(std::move(lease), [&] { return client_->submit(batch); }));
}

nb::tuple PyClient::run(int verb, nb::handle keys, nb::handle buffers, double timeout_s,
                        std::int64_t ttl_ms, bool prefix, nb::handle identity,
                        std::size_t value_size_bytes, int codec) {
  std::unique_ptr<Lease> lease;
  const auto batch = build(verb, keys, buffers, timeout_s, ttl_ms, prefix, identity,
                           value_size_bytes, codec, lease);
  finish(batch);
  return outcome_of(*batch, batch->item_count());
}

nb::tuple PyClient::call(nb::handle commands, const nb::bytes& key, const std::string& node,
                         double timeout_s) {
  const auto batch = std::make_shared<Batch>(Batch::Options{.verb = Verb::kCall});
  batch->node = node;
  batch->set_deadline(deadline(timeout_s, 0));
  for (const nb::handle command : commands) {
    std::vector<std::string_view> words;
    for (const nb::handle word : command) {
      const auto text = nb::cast<nb::bytes>(word);  // the command keeps it
      words.emplace_back(text.c_str(), text.size());
    }
    batch->add_call({key.c_str(), key.size()}, redis::encode_words(words));
  }
  finish(batch);
  nb::list replies;
  for (const redis::Command& each : batch->commands()) {
    replies.append(to_python(batch->reply(each)));
  }
  return nb::make_tuple(outcome_of(*batch, batch->item_count()), std::move(replies));
}

void PyClient::finish(const std::shared_ptr<Batch>& batch) {
  if (exiting_elsewhere()) raise({Errc::kClosed, "the interpreter is ending"});
  batch->quiet = true;
  const std::uint64_t id = value_or_raise(client_->submit(batch));
  std::optional<nb::python_error> interrupt;
  wait_for(*batch, kNever, [&] {
    nb::python_error raised;  // takes it
    if (!interrupt) interrupt.emplace(std::move(raised));
    client_->cancel(id);  // the buffers are ours until the batch has let go of them
    return true;
  });
  if (interrupt) throw std::move(*interrupt);
}

Nanos PyClient::deadline(double timeout_s, std::size_t payload_bytes) const {
  return timeout_s < 0 ? client_->deadline_for(payload_bytes)
                       : add_time(monotonic_ns(), from_seconds(timeout_s));
}

nb::list PyClient::drain() {
  nb::list completions;
  for (const auto& batch : client_->drain()) {
    leases_.take(batch->id).reset();
    completions.append(nb::make_tuple(batch->id, outcome_of(*batch, batch->item_count())));
  }
  return completions;
}

nb::list PyClient::drain_log() { return log_lines({&client_->log(), tls_log_.get()}); }

void PyClient::close() {
  const GilRelease released;
  client_->close();
}

void PyClient::watch(const std::string& prefix, const std::string& seat, std::size_t keys_max,
                     std::uint64_t load_max, bool optional) {
  client_->watch({.prefix = prefix,
                  .keys_max = keys_max,
                  .seat = seat,
                  .load_max = load_max,
                  .optional = optional});
}

nb::object PyClient::down_reason() const { return readable(client_->router().down_reason()); }

nb::list PyClient::presence(nb::handle keys) const {
  return presence_of(client_->presence(), keys);
}

nb::dict PyClient::presence_stats() const { return presence_stats_of(client_->presence()); }

nb::dict PyClient::stats() {
  Totals totals(client_->router().former());
  std::string server;
  std::string version;
  int protocol = 0;
  std::size_t read_streams = 0;
  std::size_t write_streams = 0;
  Nanos round_trip = 0;
  const auto nodes = client_->router().nodes();
  for (const auto& node : nodes) {
    redis::Server& each = *node.server;
    totals.add(each.stats());
    totals.connections_up += each.connections_up();
    totals.connections_unix += each.unix_up();
    read_streams = std::max(read_streams, each.gate().limit(redis::Direction::kRead));
    write_streams = std::max(write_streams, each.gate().limit(redis::Direction::kWrite));
    round_trip = std::max(round_trip, each.round_trip());
    const redis::ServerInfo info = each.info();
    if (server.empty()) server = info.server;
    if (version.empty()) version = info.version;
    protocol = std::max(protocol, info.protocol);
  }
  nb::dict out = totals.to_python();
  out["wake_ups"] = client_->wake_ups();
  out["visits"] = client_->visits();
  out["batches_running"] = client_->running();
  out["nodes"] = nodes.size();
  out["read_streams"] = read_streams;
  out["write_streams"] = write_streams;
  out["round_trip_us"] = round_trip / 1000;  // to the farthest node; 0: not known
  out["protocol"] = protocol;
  out["server"] = readable(server);
  out["server_version"] = readable(version);
  out["same_host"] = readable(client_->same_host() ? client_->same_host()->text() : "");
  return out;
}

nb::list PyClient::nodes() {
  nb::list out;
  for (const auto& node : client_->router().nodes()) {
    redis::Server& server = *node.server;
    const redis::ServerInfo info = server.info();
    Totals totals(server.stats());
    totals.connections_up = server.connections_up();
    totals.connections_unix = server.unix_up();
    nb::dict row = totals.to_python();
    row["address"] = readable(server.endpoint().text());
    row["role"] = server.role() == redis::NodeRole::kPrimary ? "primary" : "replica";
    row["available"] = server.available();
    row["down_reason"] = readable(server.available() ? "" : server.down_error().context);
    row["server"] = readable(info.server);
    row["server_version"] = readable(info.version);
    row["availability_zone"] = readable(info.zone);
    out.append(std::move(row));
  }
  return out;
}

std::shared_ptr<Batch> PyClient::build(int verb, nb::handle keys, nb::handle buffers,
                                       double timeout_s, std::int64_t ttl_ms, bool prefix,
                                       nb::handle identity, std::size_t value_size_bytes, int codec,
                                       std::unique_ptr<Lease>& lease) {
  const BatchArguments arguments(keys, buffers);
  const std::size_t count = arguments.size();
  Batch::Options options{.verb = static_cast<Verb>(verb), .ttl_ms = ttl_ms, .prefix = prefix};
  if (!identity.is_none()) {
    options.framed = true;
    options.identity = nb::cast<std::uint64_t>(identity);
    options.codec = static_cast<codec::Codec>(codec);
  }
  lease = std::make_unique<Lease>(arguments.has_buffers() ? count : 0);
  const auto batch = std::make_shared<Batch>(options);
  batch->reserve(count, count * (arguments.key(0).size() + 8));
  for (std::size_t index = 0; index < count; ++index) {
    MutableBytes memory(static_cast<std::byte*>(nullptr), value_size_bytes);
    if (arguments.has_buffers()) {
      memory = arguments.buffer(index, *lease, options.verb == Verb::kGet);
      if (!options.framed && memory.size() > client_->config().value_bytes_max) {
        raise({Errc::kInvalidArgument,
               "buffer " + std::to_string(index) + " is larger than value_size_bytes_max"});
      }
    }
    batch->add(arguments.key(index), memory);
  }
  if (options.verb == Verb::kGet) lease->check_disjoint();
  batch->set_deadline(deadline(timeout_s, batch->payload_bytes()));
  return batch;
}

// Types for the stub that nanobind cannot know.
#define SUBMIT_ARGUMENTS                                                               \
  "(self, verb: int, keys: typing.Any, buffers: typing.Any | None, timeout_s: float, " \
  "ttl_ms: int, prefix: bool, identity: int | None, value_size_bytes: int, codec: int) -> "

void bind_client(nb::module_& module) {
  nb::class_<PyClient>(module, "Client",
                       "A client of a server or of many. See kvferry.RedisClient.")
      .def(
          "__init__",
          [](PyClient* self, const nb::dict& settings, const PyCredentials* credentials) {
            new (self) PyClient(settings, credentials);
          },
          "settings"_a, "credentials"_a.none() = nb::none(),
          nb::sig("def __init__(self, settings: dict[str, typing.Any], "
                  "credentials: CredentialSource | None = None) -> None"),
          "Starts the I/O threads; they connect at once. Waits for nothing.")
      .def("submit", &PyClient::submit, "verb"_a, "keys"_a, "buffers"_a.none(), "timeout_s"_a,
           "ttl_ms"_a, "prefix"_a, "identity"_a.none(), "value_size_bytes"_a, "codec"_a,
           nb::sig("def submit" SUBMIT_ARGUMENTS "int"), "Returns the id at once; see drain().")
      .def("run", &PyClient::run, "verb"_a, "keys"_a, "buffers"_a.none(), "timeout_s"_a, "ttl_ms"_a,
           "prefix"_a, "identity"_a.none(), "value_size_bytes"_a, "codec"_a,
           nb::sig("def run" SUBMIT_ARGUMENTS KVFERRY_OUTCOME),
           "Waits without the GIL: statuses, sizes as u64, seconds, the first error.")
      .def("call", &PyClient::call, "commands"_a, "key"_a, "node"_a, "timeout_s"_a,
           nb::sig("def call(self, commands: typing.Sequence[typing.Sequence[bytes]], key: bytes, "
                   "node: str, timeout_s: float) -> tuple[" KVFERRY_OUTCOME ", list[typing.Any]]"),
           "Any commands, to a node of a cluster, or to whoever has a key; as run(), with replies.")
      .def("primaries", &PyClient::primaries, nb::sig("def primaries(self) -> list[str]"),
           "Who serves slots; nobody before that is known.")
      .def("drain", &PyClient::drain,
           nb::sig("def drain(self) -> list[tuple[int, " KVFERRY_OUTCOME "]]"))
      .def("drain_log", &PyClient::drain_log,
           nb::sig("def drain_log(self) -> list[tuple[int, str]]"))
      .def("cancel", &PyClient::cancel, "batch_id"_a)
      .def("event_fd", &PyClient::event_fd)
      .def("available", &PyClient::available)
      .def("down_reason", &PyClient::down_reason, nb::sig("def down_reason(self) -> str"))
      .def("stats", &PyClient::stats, nb::sig("def stats(self) -> dict[str, int | str]"))
      .def("nodes", &PyClient::nodes, nb::sig("def nodes(self) -> list[dict[str, typing.Any]]"))
      .def("watch", &PyClient::watch, "prefix"_a, "seat"_a, "keys_max"_a, "load_max"_a,
           "optional"_a,
           "Keeps a presence view from now on; of all with one `seat` on a host one does.")
      .def("forked_away", &PyClient::forked_away, "To be called in a forked child.")
      .def("presence", &PyClient::presence, "keys"_a,
           nb::sig("def presence(self, keys: typing.Any) -> list[bool | None]"))
      .def("presence_stats", &PyClient::presence_stats,
           nb::sig("def presence_stats(self) -> dict[str, int]"))
      .def("close", &PyClient::close);
  module.def("begin_exit", &begin_exit, "Other threads that come back from a wait now stay there.");
  module.def("await_parked", &await_parked, "Waits until they do, a second at most.");
}

}  // namespace kvferry
