// OnDemandPages for Python: pages that a cache gives for chunks when they come from a store.

#include "on_demand_pages.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "errors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

using connector::OnDemandPages;

struct OnDemandPagesOwner {
  std::shared_ptr<OnDemandPages> on_demand;  // shared with jobs that use it
};

void create(OnDemandPagesOwner* self, const CacheOwner& cache, const nb::bytes& hashes,
            std::int64_t first, double ttl_s) {
  const std::size_t count = hashes.size() / cache::kHashBytes;
  if (!cache.cache->has_pool()) raise({Errc::kInvalidArgument, "the cache has no pages"});
  if (hashes.size() % cache::kHashBytes != 0 || first < 0 ||
      static_cast<std::size_t>(first) >= count || !(ttl_s > 0)) {
    raise({Errc::kInvalidArgument,
           "OnDemandPages have hashes of 16 bytes each, some of them from "
           "`first` on, and a time above 0"});
  }
  std::vector<std::byte> own(hashes.size());
  std::memcpy(own.data(), hashes.c_str(), own.size());
  new (self) OnDemandPagesOwner{std::make_shared<OnDemandPages>(
      cache.cache, std::move(own), static_cast<std::size_t>(first), from_seconds(ttl_s))};
}

auto states(const OnDemandPagesOwner& self) {
  const std::size_t count = self.on_demand->size();
  nb::object states = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(count)));
  if (!states.is_valid()) throw nb::python_error();
  std::vector<std::uint64_t> pages(count);
  self.on_demand->states({reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(states.ptr())), count},
                         pages);
  return std::make_tuple(nb::borrow<nb::bytes>(states), std::move(pages));
}

}  // namespace

std::shared_ptr<OnDemandPages> on_demand_pages_of(nb::handle object) {
  if (!object.is_valid() || !nb::isinstance<OnDemandPagesOwner>(object)) return nullptr;
  return nb::cast<const OnDemandPagesOwner&>(object).on_demand;
}

void bind_on_demand_pages(nb::module_& m) {
  nb::class_<OnDemandPagesOwner>(
      m, "OnDemandPages", nb::is_weak_referenceable(),
      "Pages for hashes[first:] that are taken when values come. Goes where "
      "buffers of a GET go. See kvferry.cache.load.window.")
      .def("__init__", &create, "cache"_a, "hashes"_a, "first"_a, "ttl_s"_a)
      .def(
          "place",
          [](const OnDemandPagesOwner& self, std::int64_t index) {
            if (index < 0 || static_cast<std::size_t>(index) >= self.on_demand->size()) {
              raise({Errc::kInvalidArgument, "no such chunk"});
            }
            return reinterpret_cast<std::uintptr_t>(
                self.on_demand->buffer(static_cast<std::size_t>(index)));
          },
          "index"_a, "A value comes; where its page is, until the job is finished. 0: none.")
      .def(
          "keep",
          [](const OnDemandPagesOwner& self, std::int64_t count) {
            self.on_demand->keep(count < 0 ? 0 : static_cast<std::size_t>(count));
          },
          "count"_a, "Only the first `count` are wanted from now on, and get their pages now.")
      .def("states", &states,
           "For each chunk 0 (nothing came), 1 (it has a page), 2 (others bring it, or it is "
           "there), 3 (there is no room); and the handles of the pages.")
      .def(
          "commit",
          [](const OnDemandPagesOwner& self, const nb::bytes& ok) {
            return self.on_demand->commit(
                {reinterpret_cast<const std::uint8_t*>(ok.c_str()), ok.size()});
          },
          "ok"_a,
          "The job is finished: what has a page and a byte other than 0 becomes ready, the rest "
          "leaves; how many became ready.")
      .def_prop_ro("size", [](const OnDemandPagesOwner& self) { return self.on_demand->size(); });
}

}  // namespace kvferry
