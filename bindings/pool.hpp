#pragma once
// What stands behind a Python PagePool, and how a page of it is a buffer.
//
// PoolOwner is shared by the PagePool object, its pages, and caches over it; the last one unmaps.
// PageBuffer leases the page in its pool while it is exported, so a page that is freed under a view
// is handed out again only when the view is gone.

#include <nanobind/nanobind.h>

#include <memory>

#include "mem/page_pool.hpp"

namespace kvferry {

struct PoolOwner {
  std::shared_ptr<mem::PagePool> pool;
};

// The slots of the buffer protocol. `T` has pool() and page().
template <typename T>
struct PageBuffer {
  static int get(PyObject* self, Py_buffer* view, int flags) noexcept {
    view->obj = nullptr;
    if (!nanobind::inst_ready(self)) {
      PyErr_SetString(PyExc_BufferError, "the page was not initialised");
      return -1;
    }
    const T& object = *nanobind::inst_ptr<T>(self);
    const auto bytes = object.pool().lease(object.page());
    if (!bytes) {
      PyErr_SetString(PyExc_BufferError, "the page was freed");
      return -1;
    }
    const auto size = static_cast<Py_ssize_t>((*bytes).size());
    if (PyBuffer_FillInfo(view, self, (*bytes).data(), size, /*readonly=*/0, flags) == 0) return 0;
    [[maybe_unused]] const auto outcome = object.pool().release(object.page());
    return -1;
  }
  static void release(PyObject* self, Py_buffer*) noexcept {
    const T& object = *nanobind::inst_ptr<T>(self);
    [[maybe_unused]] const auto outcome = object.pool().release(object.page());
  }
};

}  // namespace kvferry
