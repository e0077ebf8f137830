// The paged cache of an inference engine for Python: blocks to buffers and back, in one call.
//
// Lifetime: a map holds the memory that it was given. The buffers of a call are held for the call.
// Threads: any; bytes are copied without the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "buffers.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "mem/block_map.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

using mem::BlockMap;
using mem::BlockRegion;

// Which memory, offset, block stride, rows, row stride, row bytes.
using RegionFields =
    std::tuple<std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t>;

// What Python holds. The lease keeps what the map points into.
struct MapOwner {
  std::unique_ptr<Lease> lease;
  BlockMap map;
};

void open_map(MapOwner* self, const nb::sequence& memory, const std::vector<RegionFields>& fields,
              std::size_t blocks) {
  auto lease = std::make_unique<Lease>(nb::len(memory));
  std::vector<MutableBytes> bytes;
  for (const nb::handle one : memory) bytes.push_back(lease->add(one.ptr(), true));
  std::vector<BlockRegion> regions;
  regions.reserve(fields.size());
  for (const auto& [which, offset, block_stride, rows, row_stride, row_bytes] : fields) {
    if (which >= bytes.size()) {
      raise({Errc::kInvalidArgument, "there is no memory " + std::to_string(which)});
    }
    regions.push_back({bytes[which], offset, block_stride, rows, row_stride, row_bytes});
  }
  new (self) MapOwner{std::move(lease), value_or_raise(BlockMap::open(std::move(regions), blocks))};
}

void copy(const MapOwner& self, const std::vector<std::int64_t>& blocks,
          const nb::sequence& buffers, bool to_buffers, unsigned threads, std::size_t first,
          std::size_t count) {
  const std::size_t parts = nb::len(buffers);
  const std::size_t each = parts == 0 ? 0 : blocks.size() / parts;
  if (parts * each != blocks.size()) {
    raise({Errc::kInvalidArgument, std::to_string(blocks.size()) +
                                       " blocks cannot be divided among " + std::to_string(parts) +
                                       " buffers"});
  }
  const std::size_t regions = self.map.regions();
  if (first > regions || count > regions - first) {
    raise({Errc::kInvalidArgument, "there are " + std::to_string(regions) + " regions"});
  }
  Lease leases(parts);
  std::vector<mem::Copy> copies;
  for (std::size_t i = 0; i < parts; ++i) {
    const MutableBytes buffer = leases.add(nb::object(buffers[i]).ptr(), to_buffers);
    const std::span<const std::int64_t> its(blocks.data() + i * each, each);
    if (each > 0 && buffer.size() != each * self.map.block_bytes()) {
      raise_bad_buffer("buffer " + std::to_string(i) + " has " + std::to_string(buffer.size()) +
                       " bytes, its blocks have " + std::to_string(each * self.map.block_bytes()));
    }
    value_or_raise(self.map.plan(its, buffer, to_buffers, first, count, copies));
  }
  const GilRelease unlocked;
  mem::copy_many(copies, threads);
}

}  // namespace

void bind_blocks(nb::module_& m) {
  nb::class_<MapOwner>(m, "BlockMap",
                       "Where the blocks of a paged cache lie: regions (memory, offset, block "
                       "stride, rows, row stride, row bytes), lengths in bytes. A buffer of some "
                       "blocks is [region][block][row].")
      .def("__init__", &open_map, "memory"_a, "regions"_a, "blocks"_a,
           nb::sig("def __init__(self, memory: collections.abc.Sequence[typing.Any], regions: "
                   "collections.abc.Sequence[tuple[int, int, int, int, int, int]], blocks: int) "
                   "-> None"),
           "UsageError: a region leaves its memory.")
      .def("copy", &copy, "blocks"_a, "buffers"_a, "to_buffers"_a, "threads"_a, "first"_a,
           "count"_a,
           nb::sig("def copy(self, blocks: collections.abc.Sequence[int], buffers: "
                   "collections.abc.Sequence[typing.Any], to_buffers: bool, threads: int, first: "
                   "int, count: int) -> None"),
           "Between blocks, as many for each buffer, and buffers: `count` regions from `first` on. "
           "Without the GIL, by up to `threads` threads. From buffers, a number below 0 stands for "
           "a block that is not wanted. UsageError: no such block. "
           "BadBufferError: a buffer of another length.")
      .def_prop_ro("blocks", [](const MapOwner& self) { return self.map.blocks(); })
      .def_prop_ro(
          "block_bytes", [](const MapOwner& self) { return self.map.block_bytes(); },
          "Of one block, in all regions.");
}

}  // namespace kvferry
