#pragma once
// Keys and buffers of a batch, out of Python objects, without a copy of any payload.
//
// A Lease holds the buffer exports of one batch; while it lives no exporter may resize or free its
// memory. Objects without the buffer protocol (DLPack tensors, bfloat16 arrays) go through
// kvferry.client.buffers.as_buffer, which finds a view of their memory.
// Requires: the GIL for everything here, the destructor of Lease included.

#include <Python.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"

namespace kvferry {

class Lease {
 public:
  explicit Lease(std::size_t count) { views_.reserve(count); }
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  // The memory of `object`. Raises BadBufferError: no buffer, not contiguous, or read-only.
  MutableBytes add(PyObject* object, bool writable);

  // Raises BadBufferError when two of the buffers share memory.
  void check_disjoint() const;

 private:
  std::vector<Py_buffer> views_;
};

[[noreturn]] void raise_bad_buffer(const std::string& text);

// The bytes of a str or bytes key; valid as long as the object is.
// Raises UsageError: another type, no UTF-8 form, empty, or above 512 bytes.
std::string_view key_bytes(PyObject* key);

}  // namespace kvferry
