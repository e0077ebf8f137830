// Connectors for Python: one call per job. submit() returns at once; a quiet job is waited for, the
// others come back through drain().
//
// Lifetime: buffers stay leased until the job was waited for or drained. What hangs in the kernel
// when the connector goes keeps its lease for good. Fork and exit: as for the client.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "batches.hpp"
#include "client.hpp"
#include "connector/file.hpp"
#include "connector/memory.hpp"
#include "connector/redis.hpp"
#include "on_demand_pages.hpp"
#include "presence.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

using connector::Connector;
using connector::Job;
using connector::Space;

double seconds(Nanos time) noexcept {
  return static_cast<double>(time) / static_cast<double>(kSecond);
}

nb::object bytes_of(std::string_view text) { return nb::bytes(text.data(), text.size()); }

class PyConnector {
 public:
  explicit PyConnector(std::shared_ptr<Connector> connector) : connector_(std::move(connector)) {}
  PyConnector(const PyConnector&) = delete;
  PyConnector& operator=(const PyConnector&) = delete;

  ~PyConnector() {
    if (connector_->forked()) {
      // Its threads exist in the parent only: nothing here can be joined or trusted.
      [[maybe_unused]] auto* leaked = new std::shared_ptr<Connector>(std::move(connector_));
      leases_.leak();
      return;
    }
    close();
    if (connector_->running() != 0) leases_.leak();
  }

  std::uint64_t submit(int verb, nb::handle keys, nb::handle buffers, double timeout_s,
                       std::int64_t ttl_ms, bool prefix, bool quiet) {
    release_discarded();
    if (exiting_elsewhere()) raise({Errc::kClosed, "the interpreter is ending"});
    if (verb < 0 || verb > static_cast<int>(Verb::kDelete)) {
      raise({Errc::kInvalidArgument, "not a verb: " + std::to_string(verb)});
    }
    const auto on_demand = on_demand_pages_of(buffers);
    const BatchArguments arguments(keys, on_demand ? nb::handle(Py_None) : buffers);
    const Job::Options options{.verb = static_cast<Verb>(verb), .ttl_ms = ttl_ms, .prefix = prefix};
    const bool payload = options.verb == Verb::kGet || options.verb == Verb::kSet;
    if (payload != (arguments.has_buffers() || on_demand)) {
      raise({Errc::kInvalidArgument, "GET and SET have one buffer per key, the others have none"});
    }
    const std::size_t count = arguments.size();
    if (on_demand) check_on_demand_pages(*on_demand, count);
    auto lease = std::make_unique<Lease>(arguments.has_buffers() ? count : 0);
    const auto job = std::make_shared<Job>(options);
    job->source = on_demand;
    job->reserve(count, count * arguments.key(0).size());
    for (std::size_t index = 0; index < count; ++index) {
      MutableBytes memory;
      if (on_demand) {
        memory = {static_cast<std::byte*>(nullptr), connector_->space().value_size_bytes};
      } else if (payload) {
        memory = arguments.buffer(index, *lease, options.verb == Verb::kGet);
        const std::size_t expected = connector_->space().value_size_bytes;
        if (memory.size() != expected) {
          raise_bad_buffer("buffer " + std::to_string(index) + " has " +
                           std::to_string(memory.size()) + " bytes; every value here has " +
                           std::to_string(expected));
        }
      }
      job->add(arguments.key(index), memory);
    }
    if (options.verb == Verb::kGet && !on_demand) lease->check_disjoint();
    job->set_deadline(add_time(monotonic_ns(), from_seconds(timeout_s)));
    job->quiet = quiet;
    // Under the lock of the leases, so that a drain() of another thread finds all of it.
    return value_or_raise(leases_.keep(std::move(lease), [&] {
      auto id = connector_->submit(job);
      const std::lock_guard lock(mutex_);
      if (id) (quiet ? quiet_ : announced_).emplace(*id, job);
      return id;
    }));
  }

  nb::object wait(std::uint64_t id, double timeout_s) {
    release_discarded();
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = quiet_.find(id); found != quiet_.end()) job = found->second;
    }
    if (!job) raise({Errc::kInvalidArgument, "no such quiet job, or it was discarded"});
    const Nanos until = add_time(monotonic_ns(), from_seconds(timeout_s));
    if (!job->finished() && !wait_for(*job, until, [] { return false; })) return nb::none();
    leases_.take(id).reset();
    return outcome_of(*job, job->size());
  }

  // Nobody will wait any more: forgets the job. If it runs, withdraws it, and ends its lease when
  // that is possible.
  void discard(std::uint64_t id) {
    connector_->cancel(id);
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = quiet_.find(id); found != quiet_.end()) {
        discarded_.push_back(std::move(found->second));
        quiet_.erase(found);
      }
    }
    release_discarded();
  }

  nb::list drain() {
    release_discarded();
    nb::list completions;
    for (const auto& job : connector_->drain()) {
      leases_.take(job->id).reset();
      {
        const std::lock_guard lock(mutex_);
        announced_.erase(job->id);
      }
      completions.append(nb::make_tuple(job->id, outcome_of(*job, job->size())));
    }
    return completions;
  }

  // Leading keys that are OK; of a job that was drained or waited for, 0.
  std::size_t progress(std::uint64_t id) {
    std::shared_ptr<Job> job;
    {
      const std::lock_guard lock(mutex_);
      for (const auto* jobs : {&quiet_, &announced_}) {
        if (const auto found = jobs->find(id); found != jobs->end()) job = found->second;
      }
    }
    return job ? connector_->progress(*job) : 0;
  }

  nb::list drain_log() { return log_lines({&connector_->log()}); }

  void cancel(std::uint64_t id) { connector_->cancel(id); }

  void close() {
    const GilRelease released;
    connector_->close();
  }

  [[nodiscard]] int event_fd() const { return connector_->event_fd(); }
  [[nodiscard]] bool available() const { return connector_->available(); }
  [[nodiscard]] bool pages_on_demand() const { return connector_->pages_on_demand(); }
  [[nodiscard]] std::string mode() const { return connector_->mode(); }
  [[nodiscard]] bool absent(nb::handle key) const {
    return connector_->absent(key_bytes(key.ptr()));
  }

  [[nodiscard]] nb::object leading(const nb::tuple& keys) const {
    std::vector<std::string_view> names;
    names.reserve(keys.size());
    for (const nb::handle key : keys) names.push_back(key_bytes(key.ptr()));
    const auto count = connector_->leading(names);
    return count ? nb::cast(*count) : nb::none();
  }

  // Counters of the presence view, and what is in its way; None: there is no view.
  [[nodiscard]] nb::object presence() const {
    const auto* store = dynamic_cast<const connector::RedisConnector*>(connector_.get());
    if (store == nullptr) return nb::none();
    const auto view = store->view();
    if (!view) return nb::none();
    return nb::make_tuple(presence_stats(view->stats), readable(view->why));
  }

  void write_as(int codec) { connector_->write_as(static_cast<codec::Codec>(codec)); }

  [[nodiscard]] nb::tuple usage() const {
    const connector::Usage usage = value_or_raise(connector_->usage());
    const auto optional = [](const std::optional<std::uint64_t>& number) {
      return number ? nb::cast(*number) : nb::none();
    };
    return nb::make_tuple(usage.used_bytes, optional(usage.capacity_bytes), optional(usage.keys));
  }

  nb::tuple scan(std::uint64_t cursor) {
    Result<connector::ScanPage> page = Error{Errc::kClosed, {}};
    {
      const GilRelease released;
      page = connector_->scan(cursor);
    }
    const connector::ScanPage found = value_or_raise(std::move(page));
    nb::list entries;
    for (const auto& entry : found.entries) {
      entries.append(nb::make_tuple(bytes_of(entry.key), seconds(entry.age)));
    }
    return nb::make_tuple(std::move(entries), found.next);
  }

  nb::list descriptions() {
    Result<std::vector<std::pair<connector::Identity, std::string>>> found =
        Error{Errc::kClosed, {}};
    {
      const GilRelease released;
      found = connector_->descriptions();
    }
    nb::list out;
    for (const auto& [identity, text] : value_or_raise(std::move(found))) {
      out.append(nb::make_tuple(nb::bytes(identity.data(), identity.size()), readable(text)));
    }
    return out;
  }

  [[nodiscard]] nb::dict stats() const {
    static constexpr const char* kKeys[] = {
        "keys_ok",      "keys_miss",        "keys_size_mismatch", "keys_corrupt",
        "keys_timeout", "keys_unavailable", "keys_server_error",  "keys_cancelled"};
    const connector::ConnectorStats& stats = connector_->stats();
    nb::dict out;
    out["jobs"] = stats.jobs.load(std::memory_order_relaxed);
    out["jobs_running"] = connector_->running();
    out["bytes_read"] = stats.bytes_read.load(std::memory_order_relaxed);
    out["bytes_written"] = stats.bytes_written.load(std::memory_order_relaxed);
    out["keys_unasked"] = stats.keys_unasked.load(std::memory_order_relaxed);
    for (std::size_t index = 0; index < connector::ConnectorStats::kStatuses; ++index) {
      out[kKeys[index]] = stats.keys[index].load(std::memory_order_relaxed);
    }
    for (std::size_t index = 1; index < connector::ConnectorStats::kFaults; ++index) {
      std::string key = "refused_" + std::string(name(static_cast<codec::FrameFault>(index)));
      std::ranges::replace(key, ' ', '_');
      out[key.c_str()] = stats.faults[index].load(std::memory_order_relaxed);
    }
    return out;
  }

 private:
  using Jobs = std::unordered_map<std::uint64_t, std::shared_ptr<Job>>;

  void check_on_demand_pages(const connector::OnDemandPages& on_demand, std::size_t count) const {
    const std::size_t size = connector_->space().value_size_bytes;
    if (on_demand.size() == count && on_demand.page_size_bytes() == size) return;
    raise({Errc::kInvalidArgument, "OnDemandPages of " + std::to_string(on_demand.size()) +
                                       " pages of " + std::to_string(on_demand.page_size_bytes()) +
                                       " bytes for " + std::to_string(count) + " values of " +
                                       std::to_string(size)});
  }

  void release_discarded() {
    std::vector<std::uint64_t> ids;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(discarded_, [&](const std::shared_ptr<Job>& job) {
        if (!job->finished()) return false;
        ids.push_back(job->id);
        return true;
      });
    }
    for (const std::uint64_t id : ids) leases_.take(id).reset();
  }

  std::shared_ptr<Connector> connector_;  // shared with its threads
  LeaseBook leases_;
  std::mutex mutex_;  // guards what follows where there is no GIL to do it
  Jobs quiet_;        // until they are waited for
  Jobs announced_;    // until they are drained
  std::vector<std::shared_ptr<Job>> discarded_;
};

Space make_space(const nb::bytes& prefix, const nb::bytes& identity, std::size_t value_size_bytes,
                 std::string description) {
  Space space{.prefix = std::string(prefix.c_str(), prefix.size()),
              .identity = {},
              .value_size_bytes = value_size_bytes,
              .description = std::move(description)};
  if (identity.size() != space.identity.size()) {
    raise({Errc::kInvalidArgument,
           "an identity has 16 bytes, not " + std::to_string(identity.size())});
  }
  std::memcpy(space.identity.data(), identity.c_str(), space.identity.size());
  return space;
}

}  // namespace

#define SPACE_ARGUMENTS "prefix: bytes, identity: bytes, value_size_bytes: int, description: str, "

void bind_connector(nb::module_& module) {
  nb::class_<PyConnector>(module, "Connector", "A store behind the cache. See kvferry.connectors.")
      .def("submit", &PyConnector::submit, "verb"_a, "keys"_a, "buffers"_a.none(), "timeout_s"_a,
           "ttl_ms"_a, "prefix"_a, "quiet"_a,
           nb::sig("def submit(self, verb: int, keys: typing.Any, buffers: typing.Any | None, "
                   "timeout_s: float, ttl_ms: int, prefix: bool, quiet: bool) -> int"),
           "Returns the id at once: for wait() if it is quiet, else for drain().")
      .def("wait", &PyConnector::wait, "job_id"_a, "timeout_s"_a,
           nb::sig("def wait(self, job_id: int, timeout_s: float) -> " KVFERRY_OUTCOME " | None"),
           "Waits without the GIL; None while the job still runs. To be discarded in the end.")
      .def("discard", &PyConnector::discard, "job_id"_a)
      .def("progress", &PyConnector::progress, "job_id"_a)
      .def("drain", &PyConnector::drain,
           nb::sig("def drain(self) -> list[tuple[int, " KVFERRY_OUTCOME "]]"))
      .def("drain_log", &PyConnector::drain_log,
           nb::sig("def drain_log(self) -> list[tuple[int, str]]"))
      .def("cancel", &PyConnector::cancel, "job_id"_a)
      .def("event_fd", &PyConnector::event_fd)
      .def("available", &PyConnector::available)
      .def("pages_on_demand", &PyConnector::pages_on_demand,
           "Whether a GET may have OnDemandPages instead of buffers.")
      .def("absent", &PyConnector::absent, "key"_a,
           nb::sig("def absent(self, key: str | bytes) -> bool"),
           "Whether a key is certainly absent, as far as that is known without asking.")
      .def("leading", &PyConnector::leading, "keys"_a,
           nb::sig("def leading(self, keys: tuple[str | bytes, ...]) -> int | None"),
           "How many leading keys are there in all likelihood, where that is known without asking.")
      .def("presence", &PyConnector::presence,
           nb::sig("def presence(self) -> tuple[dict[str, int], str] | None"),
           "Counters of the presence view and what is in its way, if there is one.")
      .def("write_as", &PyConnector::write_as, "codec"_a,
           "How values are written from now on: a number of codec/frame.hpp.")
      .def("mode", &PyConnector::mode, "How the driver works here, e.g. 'direct, io_uring'.")
      .def("usage", &PyConnector::usage,
           nb::sig("def usage(self) -> tuple[int, int | None, int | None]"),
           "Bytes used, capacity in bytes, keys.")
      .def("scan", &PyConnector::scan, "cursor"_a,
           nb::sig("def scan(self, cursor: int) -> tuple[list[tuple[bytes, float]], int]"),
           "Keys and ages in seconds, and where to go on; 0 = nowhere.")
      .def("descriptions", &PyConnector::descriptions,
           nb::sig("def descriptions(self) -> list[tuple[bytes, str]]"))
      .def("stats", &PyConnector::stats, nb::sig("def stats(self) -> dict[str, int]"))
      .def("close", &PyConnector::close);
  module.def(
      "open_memory_connector",
      [](const nb::bytes& prefix, const nb::bytes& identity, std::size_t value_size_bytes,
         std::string description, const std::string& name, std::uint64_t capacity_bytes,
         std::size_t queued_keys_max) {
        return new PyConnector(value_or_raise(connector::MemoryConnector::open(
            make_space(prefix, identity, value_size_bytes, std::move(description)), name,
            capacity_bytes, queued_keys_max)));
      },
      "prefix"_a, "identity"_a, "value_size_bytes"_a, "description"_a, "name"_a, "capacity_bytes"_a,
      "queued_keys_max"_a,
      nb::sig("def open_memory_connector(" SPACE_ARGUMENTS
              "name: str, capacity_bytes: int, queued_keys_max: int) -> Connector"));
  module.def(
      "open_file_connector",
      [](const nb::bytes& prefix, const nb::bytes& identity, std::size_t value_size_bytes,
         std::string description, std::string path, std::uint64_t capacity_bytes, int fsync,
         int direct, bool ring, double rescan_after_s, std::size_t queued_keys_max) {
        const connector::FileOptions options{.path = std::move(path),
                                             .capacity_bytes = capacity_bytes,
                                             .fsync = static_cast<connector::Fsync>(fsync),
                                             .direct = static_cast<connector::Direct>(direct),
                                             .ring = ring,
                                             .rescan_after = from_seconds(rescan_after_s),
                                             .queued_keys_max = queued_keys_max};
        Space space = make_space(prefix, identity, value_size_bytes, std::move(description));
        Result<std::shared_ptr<Connector>> opened = Error{Errc::kClosed, {}};
        {
          const GilRelease released;  // it looks at every file
          opened = connector::FileConnector::open(std::move(space), options);
        }
        return new PyConnector(value_or_raise(std::move(opened)));
      },
      "prefix"_a, "identity"_a, "value_size_bytes"_a, "description"_a, "path"_a, "capacity_bytes"_a,
      "fsync"_a, "direct"_a, "ring"_a, "rescan_after_s"_a, "queued_keys_max"_a,
      nb::sig("def open_file_connector(" SPACE_ARGUMENTS
              "path: str, capacity_bytes: int, fsync: int, direct: int, ring: bool, "
              "rescan_after_s: float, queued_keys_max: int) -> Connector"));
  module.def(
      "open_redis_connector",
      [](const PyClient& client, const nb::bytes& prefix, const nb::bytes& identity,
         std::size_t value_size_bytes, std::string description, const nb::object& seat,
         std::size_t keys_max, std::uint64_t load_max, bool optional, bool owns) {
        std::optional<redis::PresenceOptions> presence;
        if (!seat.is_none()) {
          presence = {.prefix = {},
                      .keys_max = keys_max,
                      .seat = nb::cast<std::string>(seat),
                      .load_max = load_max,
                      .optional = optional};
        }
        return new PyConnector(value_or_raise(connector::RedisConnector::open(
            make_space(prefix, identity, value_size_bytes, std::move(description)), client.client(),
            std::move(presence), owns)));
      },
      "client"_a, "prefix"_a, "identity"_a, "value_size_bytes"_a, "description"_a, "seat"_a.none(),
      "keys_max"_a, "load_max"_a, "optional"_a, "owns"_a = true, nb::keep_alive<0, 1>(),
      nb::sig("def open_redis_connector(client: Client, prefix: bytes, identity: bytes, "
              "value_size_bytes: int, description: str, seat: str | None, keys_max: int, "
              "load_max: int, optional: bool, owns: bool = True) -> Connector"),
      "With a `seat` (see redis::PresenceSeat) it keeps a presence view. Unless it `owns` what is "
      "there, it deletes nothing that is of no use.");
}

}  // namespace kvferry
