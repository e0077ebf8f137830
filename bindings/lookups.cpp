// What a store was heard to have: the answers for one request, and what is known to be there.
//
// A scheduler asks key by key, in a loop that the GPU waits for, so nothing here allocates Python
// objects but where names are wanted. Keys are vLLM's: see cache/vllm_key.hpp.

#include <nanobind/nanobind.h>

#include <array>
#include <string_view>
#include <vector>

#include "base/errors.hpp"
#include "cache/answers.hpp"
#include "cache/known_chunks.hpp"
#include "cache/vllm_key.hpp"
#include "errors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

using cache::Answers;
using cache::ChunkHash;
using cache::Hashes;
using cache::kHashBytes;
using cache::KnownChunks;

ByteView view_of(const nb::bytes& bytes) {
  return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

ChunkHash hash_of_key(PyObject* key) {
  if (!PyBytes_Check(key)) raise({Errc::kInvalidArgument, "the key of a chunk must be bytes"});
  return value_or_raise(cache::hash_of_vllm_key(view_of(nb::borrow<nb::bytes>(key))));
}

template <typename Use>
void for_each_key(nb::handle keys, Use&& use) {
  const nb::object items = nb::steal(PySequence_Fast(keys.ptr(), "keys must be iterable"));
  if (!items.is_valid()) throw nb::python_error();
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
    use(hash_of_key(PySequence_Fast_GET_ITEM(items.ptr(), i)));
  }
}

nb::object name_of(const ChunkHash& hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<std::byte, kHashBytes> bytes;
  hash.store(bytes.data());
  nb::object name = nb::steal(PyUnicode_New(2 * kHashBytes, 127));
  if (!name.is_valid()) throw nb::python_error();
  auto* text = static_cast<char*>(PyUnicode_DATA(name.ptr()));
  for (const std::byte byte : bytes) {
    *text++ = kDigits[std::to_integer<std::size_t>(byte >> 4)];
    *text++ = kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return name;
}

nb::list chunk_names(nb::handle keys) {
  nb::list names;
  for_each_key(keys, [&](const ChunkHash& hash) { names.append(name_of(hash)); });
  return names;
}

// The hashes of a question, and as many statuses.
Hashes hashes_of(const nb::bytes& question, std::size_t statuses) {
  const Hashes hashes(view_of(question));
  if (question.size() != statuses * kHashBytes) {
    raise({Errc::kInvalidArgument, "a question has 16 bytes for each of its statuses"});
  }
  return hashes;
}

Status status_at(const nb::bytes& statuses, std::size_t index) {
  return static_cast<Status>(static_cast<const std::uint8_t*>(statuses.data())[index]);
}

nb::tuple take(Answers& answers) {
  const std::vector<ChunkHash> fresh = answers.take();
  nb::list names;
  for (const ChunkHash& hash : fresh) names.append(name_of(hash));
  return nb::make_tuple(nb::bytes(fresh.data(), fresh.size() * kHashBytes), names);
}

void resolve(Answers& answers, const nb::bytes& question, const nb::bytes& statuses) {
  const Hashes hashes = hashes_of(question, statuses.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    answers.answer(hashes[i], status_at(statuses, i) == Status::kOk);
  }
}

void deny(Answers& answers, const nb::bytes& question) {
  const Hashes hashes = hashes_of(question, question.size() / kHashBytes);
  for (std::size_t i = 0; i < hashes.size(); ++i) answers.answer(hashes[i], false);
}

nb::tuple hear(KnownChunks& known, const nb::bytes& question, const nb::bytes& statuses) {
  const Hashes hashes = hashes_of(question, statuses.size());
  std::size_t there = 0;
  std::size_t missing = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const Status status = status_at(statuses, i);
    if (status == Status::kOk) known.add(hashes[i]);
    if (status == Status::kMiss) known.discard(hashes[i]);
    there += status == Status::kOk;
    missing += status == Status::kMiss;
  }
  return nb::make_tuple(there, missing);
}

nb::list unknown(const KnownChunks& known, nb::handle keys) {
  nb::list indices;
  std::size_t index = 0;
  for_each_key(keys, [&](const ChunkHash& hash) {
    if (!known.contains(hash)) indices.append(index);
    ++index;
  });
  return indices;
}

}  // namespace

void bind_lookups(nb::module_& module) {
  module.def("chunk_names", &chunk_names, "keys"_a,
             nb::sig("def chunk_names(keys: collections.abc.Iterable[bytes]) -> list[str]"),
             "The names of chunks in the store: 128 bits of each key, in hex.");

  nb::class_<Answers>(module, "Answers",
                      "What a store says of the chunks that one request asks for.")
      .def(nb::init<>())
      .def(
          "ask",
          [](Answers& answers, nb::handle key) {
            return static_cast<int>(answers.ask(hash_of_key(key.ptr())));
          },
          "key"_a, nb::sig("def ask(self, key: bytes) -> int"),
          "0: not there. 1: there. 2: not answered yet. 3: new, and part of the next question.")
      .def("take_back", &Answers::take_back,
           "Undoes the last ask(), which was new, when nothing was called since.")
      .def("take", &take, nb::sig("def take(self) -> tuple[bytes, list[str]]"),
           "What is new since the last call: a question, and its names.")
      .def("resolve", &resolve, "question"_a, "statuses"_a,
           nb::sig("def resolve(self, question: bytes, statuses: bytes) -> None"),
           "The answer to a question: whether each status is OK.")
      .def("deny", &deny, "question"_a, nb::sig("def deny(self, question: bytes) -> None"),
           "Nothing of a question is there.")
      .def(
          "miss",
          [](Answers& answers, nb::handle keys) {
            for_each_key(keys, [&](const ChunkHash& hash) { answers.answer(hash, false); });
          },
          "keys"_a, nb::sig("def miss(self, keys: collections.abc.Iterable[bytes]) -> None"),
          "These are not there, if they were asked for.");

  nb::class_<KnownChunks>(module, "KnownChunks",
                          "Chunks that a store was heard to have; the oldest are forgotten first.")
      .def(
          "__init__",
          [](KnownChunks* place, std::uint32_t keys_max) {
            if (keys_max == 0) raise({Errc::kInvalidArgument, "keys_max must be at least 1"});
            new (place) KnownChunks(keys_max);
          },
          "keys_max"_a)
      .def("__len__", &KnownChunks::size)
      .def(
          "__contains__",
          [](const KnownChunks& known, nb::handle key) {
            return known.contains(hash_of_key(key.ptr()));
          },
          "key"_a, nb::sig("def __contains__(self, key: bytes) -> bool"))
      .def(
          "add",
          [](KnownChunks& known, nb::handle keys) {
            for_each_key(keys, [&](const ChunkHash& hash) { known.add(hash); });
          },
          "keys"_a, nb::sig("def add(self, keys: collections.abc.Iterable[bytes]) -> None"),
          "The store has these.")
      .def(
          "discard",
          [](KnownChunks& known, nb::handle keys) {
            for_each_key(keys, [&](const ChunkHash& hash) { known.discard(hash); });
          },
          "keys"_a, nb::sig("def discard(self, keys: collections.abc.Iterable[bytes]) -> None"),
          "The store has these not.")
      .def("unknown", &unknown, "keys"_a,
           nb::sig("def unknown(self, keys: collections.abc.Iterable[bytes]) -> list[int]"),
           "The indices of those that it was not heard to have.")
      .def("hear", &hear, "question"_a, "statuses"_a,
           nb::sig("def hear(self, question: bytes, statuses: bytes) -> tuple[int, int]"),
           "What the statuses of a question say: how many are there, how many are not.");
}

}  // namespace kvferry
