#include "buffers.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "errors.hpp"

namespace nb = nanobind;

namespace kvferry {
namespace {

constexpr std::size_t kKeyBytesMax = 512;

nb::object python(const char* module, const char* name) {
  return nb::module_::import_(module).attr(name);
}

// Contiguous memory without Python objects in it; exporters refuse what is not contiguous.
bool get_buffer(PyObject* object, Py_buffer* view) noexcept {
  if (PyObject_GetBuffer(object, view, PyBUF_ND | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  if (view->format == nullptr || std::strchr(view->format, 'O') == nullptr) return true;
  PyBuffer_Release(view);
  return false;
}

}  // namespace

void raise_bad_buffer(const std::string& text) {
  PyErr_SetString(python("kvferry.base.errors", "BadBufferError").ptr(), text.c_str());
  throw nb::python_error();
}

Lease::~Lease() {
  for (Py_buffer& view : views_) PyBuffer_Release(&view);
}

MutableBytes Lease::add(PyObject* object, bool writable) {
  Py_buffer view;
  if (!get_buffer(object, &view)) {
    // Slow path: it finds other ways to the memory, or says in words what is wrong.
    const nb::object bytes =
        python("kvferry.client.buffers", writable ? "writable" : "readable")(nb::handle(object));
    if (PyObject_GetBuffer(bytes.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  views_.push_back(view);
  if (writable && view.readonly) {
    raise_bad_buffer(std::string(Py_TYPE(object)->tp_name) +
                     " is read-only; a target must be writable");
  }
  return {static_cast<std::byte*>(view.buf), static_cast<std::size_t>(view.len)};
}

void Lease::check_disjoint() const {
  const auto begin = [&](std::size_t index) {
    return static_cast<const std::byte*>(views_[index].buf);
  };
  // Batches mostly walk through memory upwards: then neighbours tell all, without a sort.
  std::vector<std::size_t> order;
  bool ascending = true;
  for (std::size_t index = 1; index < views_.size() && ascending; ++index) {
    ascending = begin(index - 1) <= begin(index);
  }
  order.resize(views_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!ascending) std::ranges::sort(order, {}, begin);
  const std::byte* end = nullptr;
  std::size_t owner = 0;
  for (const std::size_t index : order) {
    if (views_[index].len == 0) continue;
    if (begin(index) < end) {
      raise_bad_buffer("buffers " + std::to_string(std::min(owner, index)) + " and " +
                       std::to_string(std::max(owner, index)) + " overlap; use separate memory");
    }
    end = begin(index) + views_[index].len;
    owner = index;
  }
}

std::string_view key_bytes(PyObject* key) {
  const char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyUnicode_Check(key)) {
    data = PyUnicode_AsUTF8AndSize(key, &size);
    if (data == nullptr) PyErr_Clear();
  } else if (PyBytes_Check(key)) {
    data = PyBytes_AS_STRING(key);
    size = PyBytes_GET_SIZE(key);
  }
  if (data == nullptr || size == 0 || static_cast<std::size_t>(size) > kKeyBytesMax) {
    python("kvferry.client.buffers", "encode_key")(nb::handle(key));  // raises, in words
    raise({Errc::kInvalidArgument, "the key is not usable"});
  }
  return {data, static_cast<std::size_t>(size)};
}

}  // namespace kvferry
