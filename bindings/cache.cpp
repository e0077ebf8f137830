// ChunkCache for Python. Hashes cross as one bytes object of 16 for each chunk, root first.
//
// Calls hold the GIL: each takes microseconds to a few milliseconds, and nothing in them waits for
// Python. The cache keeps the memory of its pool mapped.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cache/chunk_cache.hpp"
#include "cache/policy.hpp"
#include "errors.hpp"
#include "on_demand_pages.hpp"
#include "pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

using cache::ChunkCache;
using cache::ChunkHash;
using cache::Hashes;
using cache::kHashBytes;

Hashes hashes_of(const nb::bytes& bytes) {
  if (bytes.size() % kHashBytes != 0) {
    raise({Errc::kInvalidArgument,
           "hashes have 16 bytes each; " + std::to_string(bytes.size()) + " is no multiple of it"});
  }
  return Hashes(as_bytes({bytes.c_str(), bytes.size()}));
}

Nanos ttl_of(double ttl_s) {
  if (!(ttl_s > 0)) raise({Errc::kInvalidArgument, "ttl_s must be above 0"});
  return from_seconds(ttl_s);
}

std::size_t first_of(std::int64_t first) {
  if (first < 0) raise({Errc::kInvalidArgument, "first must not be negative"});
  return static_cast<std::size_t>(first);
}

nb::bytes new_bytes(std::size_t size) {
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (bytes == nullptr) throw nb::python_error();
  return nb::steal<nb::bytes>(bytes);
}

template <typename Byte>
Byte* data_of(nb::bytes& bytes) {
  return reinterpret_cast<Byte*>(PyBytes_AS_STRING(bytes.ptr()));
}

nb::bytes packed(const std::vector<ChunkHash>& hashes) {
  nb::bytes bytes = new_bytes(hashes.size() * kHashBytes);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    hashes[i].store(data_of<std::byte>(bytes) + i * kHashBytes);
  }
  return bytes;
}

void create(CacheOwner* self, std::int64_t capacity, const std::string& policy, bool leaf_first,
            const PoolOwner* pool) {
  const auto chunks = capacity < 0 ? std::size_t{0} : static_cast<std::size_t>(capacity);
  new (self) CacheOwner{value_or_raise(
      ChunkCache::create(chunks, policy, leaf_first, pool != nullptr ? pool->pool : nullptr))};
}

auto reserve(const CacheOwner& self, const nb::bytes& hashes, std::int64_t first, double ttl_s) {
  const Hashes all = hashes_of(hashes);
  auto got = self.cache->reserve(all, first_of(first), ttl_of(ttl_s));
  return std::make_tuple(got.id, std::move(got.indices), std::move(got.pages), got.shed);
}

std::size_t commit(const CacheOwner& self, std::uint64_t id, const std::optional<nb::bytes>& ok) {
  if (!ok) return value_or_raise(self.cache->commit(id, {}));
  const auto* flags = reinterpret_cast<const std::uint8_t*>(ok->c_str());
  // No reservation has no chunks, so these are flags for another one.
  if (ok->size() == 0) raise({Errc::kInvalidArgument, "commit: ok is empty; leave it out for all"});
  return value_or_raise(self.cache->commit(id, {flags, ok->size()}));
}

void require_no_pool(const CacheOwner& self, const char* what) {
  if (self.cache->has_pool()) {
    raise({Errc::kInvalidArgument, std::string(what) + " is for caches without a pool"});
  }
}

nb::bytes evict(const CacheOwner& self, std::int64_t count) {
  const auto hashes = self.cache->evict(count < 0 ? 0 : static_cast<std::size_t>(count));
  return packed(hashes);
}

nb::bytes states(const CacheOwner& self, const nb::bytes& hashes) {
  const Hashes all = hashes_of(hashes);
  nb::bytes bytes = new_bytes(all.size());
  self.cache->states(all, {data_of<std::uint8_t>(bytes), all.size()});
  return bytes;
}

std::vector<std::uint64_t> generations(const CacheOwner& self, const nb::bytes& hashes) {
  const Hashes all = hashes_of(hashes);
  std::vector<std::uint64_t> generations(all.size());
  self.cache->generations(all, generations);
  return generations;
}

// --- For those who tell others
// ------------------------------------------------------------------

// Consecutive changes of one kind go together, so that their order stays.
using Runs = std::vector<std::pair<bool, nb::bytes>>;

std::optional<std::pair<std::uint64_t, Runs>> changes(const CacheOwner& self, std::uint64_t from,
                                                      std::size_t max) {
  std::vector<cache::Change> all;
  const auto next = self.cache->changes(from, max, all);
  if (!next) return std::nullopt;
  Runs runs;
  std::vector<ChunkHash> run;
  for (std::size_t i = 0; i < all.size(); ++i) {
    run.push_back(all[i].hash);
    if (i + 1 < all.size() && all[i + 1].ready == all[i].ready) continue;
    runs.emplace_back(all[i].ready, packed(run));
    run.clear();
  }
  return std::make_pair(*next, std::move(runs));
}

auto ready_from(const CacheOwner& self, std::uint32_t from, std::size_t count) {
  std::vector<ChunkHash> hashes;
  const std::uint32_t next = self.cache->ready_from(from, count, hashes);
  return std::make_pair(next, packed(hashes));
}

// --- Over a restart
// -------------------------------------------------------------------------------

auto residents(const CacheOwner& self) {
  const auto all = self.cache->residents();
  nb::bytes hashes = new_bytes(all.size() * kHashBytes);
  std::vector<std::int64_t> parents(all.size());
  std::vector<std::uint64_t> pages(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].hash.store(data_of<std::byte>(hashes) + i * kHashBytes);
    parents[i] = all[i].parent == cache::kNone ? -1 : std::int64_t{all[i].parent};
    pages[i] = all[i].page;
  }
  return std::make_tuple(std::move(hashes), std::move(parents), std::move(pages));
}

std::size_t adopt(const CacheOwner& self, const nb::bytes& hashes,
                  const std::vector<std::int64_t>& parents,
                  const std::vector<std::uint64_t>& pages) {
  const Hashes all = hashes_of(hashes);
  if (parents.size() != all.size() || pages.size() != all.size()) {
    raise({Errc::kInvalidArgument,
           "adopt: a parent and a page for each of the " + std::to_string(all.size()) + " chunks"});
  }
  std::vector<cache::Resident> chunks(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (parents[i] >= static_cast<std::int64_t>(i) || parents[i] < -1) {
      raise({Errc::kInvalidArgument,
             "adopt: the parent of chunk " + std::to_string(i) + " is not in front of it"});
    }
    const auto parent = parents[i] < 0 ? cache::kNone : static_cast<std::uint32_t>(parents[i]);
    chunks[i] = {all[i], parent, pages[i]};
  }
  return value_or_raise(self.cache->adopt(chunks));
}

nb::typed<nb::dict, nb::str, nb::int_> stats(const CacheOwner& self) {
  const cache::CacheStats stats = self.cache->stats();
  nb::typed<nb::dict, nb::str, nb::int_> out;
  out["resident"] = stats.index.ready + stats.index.writing;
  out["ready"] = stats.index.ready;
  out["writing"] = stats.index.writing;
  out["leased"] = stats.index.leased;
  out["pinned"] = stats.index.pinned;
  out["leases"] = stats.leases;
  out["reservations"] = stats.reservations;
  out["expired_held"] = stats.expired_held;
  out["insertions"] = stats.index.insertions;
  out["evictions"] = stats.index.evictions;
  out["evicted_then_missed"] = stats.index.evicted_then_missed;
  out["leases_expired"] = stats.leases_expired;
  out["reservations_expired"] = stats.reservations_expired;
  out["shed"] = stats.index.shed;
  out["index_bytes"] = stats.index_bytes;
  return out;
}

}  // namespace

void bind_cache(nb::module_& m) {
  m.def(
      "policies",
      [] {
        nb::list names;
        for (const auto& [name, make] : cache::kPolicies) {
          names.append(nb::str(name.data(), name.size()));
        }
        return nb::tuple(names);
      },
      nb::sig("def policies() -> tuple[str, ...]"), "The names of the eviction policies.");
  nb::class_<CacheOwner>(m, "ChunkCache",
                         "The index of chunks: who is there, who may go. Hashes are bytes, 16 for "
                         "each chunk, root first; counts are chunks.")
      .def("__init__", &create, "capacity"_a, "policy"_a = "LRU", nb::kw_only(),
           "leaf_first"_a = true, "pool"_a.none() = nb::none(),
           "UsageError: a capacity below 1 or above the pool's pages, or an unknown policy.")
      .def(
          "lookup",
          [](const CacheOwner& self, const nb::bytes& hashes) {
            const auto prefix = self.cache->lookup(hashes_of(hashes));
            return std::make_tuple(prefix.ready, prefix.writing);
          },
          "hashes"_a, "The leading ready run, and how many right behind it are being written.")
      .def(
          "touch",
          [](const CacheOwner& self, const nb::bytes& hashes) {
            return self.cache->touch(hashes_of(hashes));
          },
          "hashes"_a, "The leading ready run, which counts as used.")
      .def(
          "acquire",
          [](const CacheOwner& self, const nb::bytes& hashes, double ttl_s) {
            auto lease = self.cache->acquire(hashes_of(hashes), ttl_of(ttl_s));
            return std::make_tuple(lease.id, std::move(lease.pages));
          },
          "hashes"_a, "ttl_s"_a,
          "Lease the leading ready run: the lease's id and the handles of the pages; (0, []) when "
          "there is none. It counts as used.")
      .def(
          "release",
          [](const CacheOwner& self, std::uint64_t id) { return self.cache->release(id); },
          "lease_id"_a, "Whether the lease was in force until now.")
      .def("reserve", &reserve, "hashes"_a, "first"_a, "ttl_s"_a,
           "Make room for the absent ones of hashes[first:]: the reservation's id, the indices of "
           "those that got room, their pages, and how many got none.")
      .def("commit", &commit, "reservation_id"_a, "ok"_a = nb::none(),
           "How many chunks became ready; 0 when the reservation had expired. `ok` has one byte "
           "for each reserved chunk; 0 drops it.")
      .def(
          "commit_leased",
          [](const CacheOwner& self, std::uint64_t id, double ttl_s) {
            const auto lease = self.cache->commit_leased(id, ttl_of(ttl_s));
            return std::make_tuple(lease.pages.size(), lease.id);
          },
          "reservation_id"_a, "ttl_s"_a,
          "Commit all of it and lease it: how many chunks, and the lease; (0, 0) when the "
          "reservation had expired.")
      .def(
          "abort", [](const CacheOwner& self, std::uint64_t id) { return self.cache->abort(id); },
          "reservation_id"_a, "Whether the reservation was in force until now.")
      .def(
          "extend",
          [](const CacheOwner& self, std::uint64_t id, double ttl_s) {
            return self.cache->extend(id, ttl_of(ttl_s));
          },
          "id"_a, "ttl_s"_a, "A new deadline, from now; False when it has passed already.")
      .def(
          "revoke", [](const CacheOwner& self, std::uint64_t id) { return self.cache->revoke(id); },
          "id"_a,
          "End a lease or reservation, in force or expired, of a holder that touches its memory "
          "no more. Whether it was known.")
      .def(
          "pin",
          [](const CacheOwner& self, const nb::bytes& hashes) {
            return self.cache->pin(hashes_of(hashes));
          },
          "hashes"_a, "How many of the leading ready run are kept now. Pins are counted.")
      .def(
          "unpin",
          [](const CacheOwner& self, const nb::bytes& hashes) {
            return self.cache->unpin(hashes_of(hashes));
          },
          "hashes"_a, "How many of the leading ready run lost a pin.")
      .def("states", &states, "hashes"_a,
           "A byte for each chunk: 0 absent, 1 evicted, 2 writing, 3 ready, 4 leased, 5 pinned.")
      .def(
          "watch", [](const CacheOwner& self, std::size_t kept) { return self.cache->watch(kept); },
          "kept"_a,
          "Keep the last so many changes from now on; the number of the next one. Called again it "
          "keeps what it has.")
      .def("changes", &changes, "start"_a, "count"_a,
           "Up to `count` changes from number `start` on, as (whether these are ready from now on, "
           "hashes) in their order, and the number to go on from. None: some are not kept any "
           "more.")
      .def("ready_from", &ready_from, "slot"_a, "count"_a,
           "The ready chunks in up to `count` slots from `slot` on, and the slot to go on from, 0: "
           "that was all. A chunk that stays is met once.")
      .def("generations", &generations, "hashes"_a,
           "For each chunk a number that changes when it left and was stored anew; 0: not ready.")
      .def(
          "access",
          [](const CacheOwner& self, const nb::bytes& hashes) {
            require_no_pool(self, "access");
            const auto hits = self.cache->access(hashes_of(hashes));
            return std::make_tuple(hits.prefix, hits.block);
          },
          "hashes"_a,
          "A whole request: what is there is used, the rest stored at once. The leading run of "
          "those that were there, and all of them.")
      .def(
          "insert",
          [](const CacheOwner& self, const nb::bytes& hashes, std::int64_t first) {
            require_no_pool(self, "insert");
            return self.cache->insert(hashes_of(hashes), first_of(first));
          },
          "hashes"_a, "first"_a = 0, "Store the absent ones of hashes[first:]; how many got room.")
      .def("evict", &evict, "count"_a, "The hashes of up to `count` victims, which are gone.")
      .def(
          "remove",
          [](const CacheOwner& self, const nb::bytes& hashes) {
            return self.cache->remove(hashes_of(hashes));
          },
          "hashes"_a, "How many were there. Leased ones go too; their memory goes with the lease.")
      .def(
          "clear", [](const CacheOwner& self) { return self.cache->clear(); },
          "Remove everything; how many there were.")
      .def("entries", &residents,
           "Every ready chunk, for adopt() after a restart: hashes, for each the index of its "
           "parent in the list or -1, and its page. Parents come before their children; else who "
           "would be evicted last is in front.")
      .def("adopt", &adopt, "hashes"_a, "parents"_a, "pages"_a,
           "Take over what entries() gave as ready chunks, with pages of PagePool.claim(); page 0 "
           "leaves a chunk out. How many came in: nobody is evicted for them. The pages are the "
           "cache's from here on. UsageError, and nothing done: a parent behind its child, a page "
           "twice or not in use.")
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, int]"))
      .def_prop_ro("capacity", [](const CacheOwner& self) { return self.cache->capacity(); });
}

}  // namespace kvferry
