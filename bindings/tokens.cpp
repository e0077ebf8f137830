// Token ids out of Python objects, and the hashes of their chunks.
//
// Lists and tuples of ints are read in place, and so are one-dimensional buffers of integers in
// native byte order; anything else that yields ints is iterated. Every way refuses what is not an
// integer from 0 to 2^32 - 1.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "cache/chunk_hash.hpp"
#include "errors.hpp"
#include "gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

using cache::ChunkHash;
using cache::kHashBytes;
using Tokens = std::vector<std::uint32_t>;

[[noreturn]] void refuse(const std::string& text) { raise({Errc::kInvalidArgument, text}); }

[[noreturn]] void refuse_token(const std::string& what) {
  refuse("token ids must be integers from 0 to 2**32 - 1: " + what);
}

std::uint32_t token_of(PyObject* object) {
  if (!PyLong_Check(object)) {
    // NumPy's integers are none of Python's, and have an __index__.
    const nb::object index = nb::steal(PyNumber_Index(object));
    if (!index.is_valid()) {
      PyErr_Clear();
      refuse_token(std::string(Py_TYPE(object)->tp_name) + " is none");
    }
    return token_of(index.ptr());
  }
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    refuse_token("one is beyond 64 bits");
  }
  if (value < 0 || value > UINT32_MAX) refuse_token(std::to_string(value));
  return static_cast<std::uint32_t>(value);
}

template <typename Integer>
void append(Tokens& tokens, const void* data, std::size_t count) {
  const auto* bytes = static_cast<const std::byte*>(data);
  tokens.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    Integer value;
    std::memcpy(&value, bytes + i * sizeof(Integer), sizeof(Integer));
    if (value < 0 || static_cast<std::uint64_t>(value) > UINT32_MAX) {
      refuse_token(std::to_string(value));
    }
    tokens.push_back(static_cast<std::uint32_t>(value));
  }
}

// Whether the object is a buffer that can be read in place; then it was.
bool append_buffer(Tokens& tokens, PyObject* object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_ND | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  struct Release {
    Py_buffer* view;
    ~Release() { PyBuffer_Release(view); }
  } const release{&view};
  if (view.ndim != 1 || view.format == nullptr) return false;
  const char* format = view.format + (*view.format == '@' || *view.format == '=');
  if (std::strlen(format) != 1) return false;
  const auto count = static_cast<std::size_t>(view.len / view.itemsize);
  const bool is_signed = std::strchr("ilq", *format) != nullptr;
  if (!is_signed && std::strchr("ILQ", *format) == nullptr) return false;
  if (view.itemsize == 4) {
    is_signed ? append<std::int32_t>(tokens, view.buf, count)
              : append<std::uint32_t>(tokens, view.buf, count);
  } else {
    is_signed ? append<std::int64_t>(tokens, view.buf, count)
              : append<std::uint64_t>(tokens, view.buf, count);
  }
  return true;
}

Tokens read_tokens(nb::handle object) {
  Tokens tokens;
  if (PyObject_CheckBuffer(object.ptr()) && append_buffer(tokens, object.ptr())) return tokens;
  // For a list or tuple this is the object itself.
  const nb::object items = nb::steal(PySequence_Fast(object.ptr(), "tokens"));
  if (!items.is_valid()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
    refuse("tokens are a sequence of integers, not " + std::string(Py_TYPE(object.ptr())->tp_name));
  }
  tokens.reserve(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items.ptr())));
  // An __index__ may change the list, so its length is asked for each time.
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
    const nb::object item = nb::borrow(PySequence_Fast_GET_ITEM(items.ptr(), i));
    tokens.push_back(token_of(item.ptr()));
  }
  return tokens;
}

nb::bytes hash_chunks(nb::handle object, std::int64_t chunk_size, const nb::bytes& salt,
                      const std::optional<nb::bytes>& parent) {
  if (chunk_size < 1) {
    refuse("chunk_size must be at least 1, not " + std::to_string(chunk_size));
  }
  if (parent && parent->size() != kHashBytes) {
    refuse("a parent is a hash of 16 bytes, not " + std::to_string(parent->size()));
  }
  if (parent && salt.size() > 0) refuse("the salt is in the parent already; give one of the two");
  const Tokens tokens = read_tokens(object);
  const auto step = static_cast<std::size_t>(chunk_size);
  const std::size_t size = tokens.size() / step * kHashBytes;
  nb::object hashes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!hashes.is_valid()) throw nb::python_error();
  const MutableBytes target(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(hashes.ptr())), size);
  const ChunkHash above =
      parent ? ChunkHash::load(reinterpret_cast<const std::byte*>(parent->c_str()))
             : value_or_raise(cache::root_hash(as_bytes({salt.c_str(), salt.size()})));
  const auto outcome = [&] {
    const GilRelease unlocked;
    return cache::hash_chunks(tokens, step, above, target);
  }();
  value_or_raise(outcome);
  return nb::borrow<nb::bytes>(hashes);
}

}  // namespace

void bind_tokens(nb::module_& m) {
  m.def("hash_chunks", &hash_chunks, "tokens"_a, "chunk_size"_a, "salt"_a = nb::bytes(""),
        "parent"_a = nb::none(),
        nb::sig("def hash_chunks(tokens: typing.Any, chunk_size: int, salt: bytes = b'', "
                "parent: bytes | None = None) -> bytes"),
        "16 bytes for each full chunk, as kvferry.chunks.keys computes them. `parent` continues a "
        "chain.");
}

}  // namespace kvferry
