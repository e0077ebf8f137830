// Directory for Python. Hashes cross as one bytes object of 16 each; no entry becomes an object.
//
// Calls let go of the GIL: a long one (a piece of a snapshot) must keep no other thread waiting.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "directory/directory.hpp"
#include "errors.hpp"
#include "gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

using cache::Hashes;
using cache::kHashBytes;
using directory::Directory;

Hashes hashes_of(const nb::bytes& bytes) {
  if (bytes.size() % kHashBytes != 0) {
    raise({Errc::kInvalidArgument,
           "hashes have 16 bytes each; " + std::to_string(bytes.size()) + " is no multiple of it"});
  }
  return Hashes(as_bytes({bytes.c_str(), bytes.size()}));
}

bool update(Directory& self, Directory::Seat seat, const nb::bytes& added,
            const nb::bytes& removed) {
  const Hashes come = hashes_of(added);
  const Hashes gone = hashes_of(removed);
  const GilRelease released;
  return self.update(seat, come, gone);
}

bool fill(Directory& self, Directory::Seat seat, const nb::bytes& part) {
  const Hashes hashes = hashes_of(part);
  const GilRelease released;
  return self.fill(seat, hashes);
}

Directory::Seat open(Directory& self) { return value_or_raise(self.open()); }

bool drop(Directory& self, Directory::Seat seat) {
  const GilRelease released;
  return self.drop(seat);
}

bool begin(Directory& self, Directory::Seat seat) {
  const GilRelease released;
  return self.begin(seat);
}

bool finish(Directory& self, Directory::Seat seat) {
  const GilRelease released;
  return self.finish(seat);
}

std::vector<std::pair<Directory::Seat, std::size_t>> lookup(const Directory& self,
                                                            const nb::bytes& hashes) {
  const Hashes all = hashes_of(hashes);
  std::vector<std::pair<Directory::Seat, std::size_t>> found;
  const GilRelease released;
  for (const auto& held : self.lookup(all)) found.emplace_back(held.seat, held.chunks);
  return found;
}

nb::bytes states(const Directory& self, Directory::Seat seat, const nb::bytes& hashes) {
  const Hashes all = hashes_of(hashes);
  std::vector<std::uint8_t> held(all.size());
  {
    const GilRelease released;
    self.states(seat, all, held);
  }
  return nb::bytes(held.data(), held.size());
}

nb::typed<nb::dict, nb::str, nb::int_> stats(const Directory& self) {
  const Directory::Stats stats = self.stats();
  nb::typed<nb::dict, nb::str, nb::int_> out;
  out["seats"] = stats.seats;
  out["entries"] = stats.entries;
  out["memory_bytes"] = stats.memory_bytes;
  return out;
}

}  // namespace

void bind_directory(nb::module_& module) {
  nb::class_<Directory>(module, "Directory",
                        "Which instance holds which chunks, by what each of them says of itself.")
      .def(nb::init<>())
      .def("open", &open, "A seat that holds nothing; no number is taken twice.")
      .def("drop", &drop, "seat"_a, "It holds nothing any more; False: there is none.")
      .def("update", &update, "seat"_a, "added"_a, "removed"_a,
           nb::sig("def update(self, seat: int, added: bytes, removed: bytes) -> bool"),
           "Hashes that came, then those that went; False: there is no such seat.")
      .def("begin", &begin, "seat"_a,
           "Begins a snapshot, which lookups do not see yet; False: there is no such seat.")
      .def("fill", &fill, "seat"_a, "part"_a,
           nb::sig("def fill(self, seat: int, part: bytes) -> bool"),
           "Hashes of the snapshot; False: none was begun.")
      .def("finish", &finish, "seat"_a,
           "The snapshot is what the seat holds from now on; False: none was begun.")
      .def("lookup", &lookup, "hashes"_a,
           nb::sig("def lookup(self, hashes: bytes) -> list[tuple[int, int]]"),
           "Seats that hold leading chunks, with how many; the longest first.")
      .def("states", &states, "seat"_a, "hashes"_a,
           nb::sig("def states(self, seat: int, hashes: bytes) -> bytes"),
           "Of each hash 1 if the seat holds it, else 0.")
      .def("size", &Directory::size, "seat"_a, "How many chunks a seat holds.")
      .def("stats", &stats, "seats, entries, memory_bytes.");
}

}  // namespace kvferry
