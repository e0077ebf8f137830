// The page pool for Python: handles as integers, and a Page that is a writable buffer.
//
// Lifetime: a Page and whatever views it (memoryview, NumPy array) keep the pool's memory mapped,
// whether or not the PagePool object is still there. Each buffer export leases its page, so a page
// freed under a view is handed out again only when the view is gone.
// Threads: the native pool locks; nothing here has state of its own.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gil.hpp"
#include "mem/page_pool.hpp"
#include "pool.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

using mem::PageHandle;

// A pool that cannot get its memory is out of memory; everything else is the caller's mistake.
[[noreturn]] void raise_plain(const Error& error) {
  if (error.code == Errc::kInvalidArgument) throw nb::value_error(error.context.c_str());
  PyErr_SetString(PyExc_MemoryError, error.context.c_str());
  throw nb::python_error();
}

template <typename T>
T plain(Result<T> result) {
  if (!result) raise_plain(result.error());
  return std::move(*result);
}

class Page {
 public:
  Page(const PoolOwner& owner, std::uint64_t handle)
      : pool_(owner.pool), handle_(PageHandle::unpack(handle)) {
    (void)address();
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page() {
    // Freed before is fine: the handle is stale by then, and the call changes nothing.
    [[maybe_unused]] const auto outcome = pool_->free(handle_);
  }

  void free() { plain(pool_->free(handle_)); }
  [[nodiscard]] bool freed() const { return !pool_->bytes(handle_); }
  [[nodiscard]] std::uint64_t handle() const { return handle_.packed(); }
  [[nodiscard]] std::size_t size_bytes() const { return pool_->page_size_bytes(); }
  [[nodiscard]] std::uintptr_t address() const {
    return reinterpret_cast<std::uintptr_t>(plain(pool_->bytes(handle_)).data());
  }

  [[nodiscard]] mem::PagePool& pool() const { return *pool_; }
  [[nodiscard]] PageHandle page() const { return handle_; }

 private:
  const std::shared_ptr<mem::PagePool> pool_;
  const PageHandle handle_;
};

PyType_Slot page_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&PageBuffer<Page>::get)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(&PageBuffer<Page>::release)},
    {0, nullptr},
};

void create_pool(PoolOwner* self, std::size_t page_size_bytes, std::size_t pages_count,
                 bool hugetlb, bool prefault) {
  auto pool = [&] {
    const GilRelease unlocked;  // supplying the memory of a large pool takes seconds
    return mem::PagePool::create(page_size_bytes, pages_count,
                                 {.hugetlb = hugetlb, .prefault = prefault});
  }();
  new (self) PoolOwner{plain(std::move(pool))};
}

std::optional<std::uint64_t> allocate(const PoolOwner& owner) {
  const auto handle = owner.pool->allocate();
  if (!handle) return std::nullopt;
  return handle->packed();
}

std::optional<std::vector<std::uint64_t>> allocate_many(const PoolOwner& owner, std::size_t count) {
  // Asked before the memory for the answer is: the number may be anything.
  if (count > owner.pool->stats().pages_count) return std::nullopt;
  std::vector<PageHandle> handles(count);
  if (!owner.pool->allocate_many(handles)) return std::nullopt;
  std::vector<std::uint64_t> packed(count);
  for (std::size_t i = 0; i < count; ++i) packed[i] = handles[i].packed();
  return packed;
}

// --- Over a shared segment
// ------------------------------------------------------------------------

std::unique_ptr<PoolOwner> pool_over(const SegmentOwner& segment, std::size_t page_size_bytes,
                                     std::size_t pages_count, bool prefault) {
  (void)segment.get();
  return std::make_unique<PoolOwner>(PoolOwner{value_or_raise(
      mem::PagePool::over(segment.segment, page_size_bytes, pages_count, prefault))});
}

std::tuple<std::size_t, std::optional<std::string>> resize(
    const PoolOwner& owner, mem::Resized (mem::PagePool::*change)(std::size_t), std::size_t count) {
  auto done = [&] {
    const GilRelease unlocked;
    return (*owner.pool.*change)(count);
  }();
  if (!done.error) return {done.count, std::nullopt};
  if (done.error->code == Errc::kInvalidArgument) raise(*done.error);
  return {done.count, std::move(done.error->context)};
}

std::uint64_t claim(const PoolOwner& owner, std::uint32_t index) {
  auto handle = [&] {
    const GilRelease unlocked;
    return owner.pool->claim(index);
  }();
  return value_or_raise(std::move(handle)).packed();
}

void trim(const PoolOwner& owner) {
  auto done = [&] {
    const GilRelease unlocked;
    return owner.pool->trim();
  }();
  value_or_raise(std::move(done));
}

}  // namespace

void bind_pool(nb::module_& m) {
  nb::class_<PoolOwner>(m, "PagePool", "Equal pages cut from one mapping; see kvferry.chunks.pool.")
      .def("__init__", &create_pool, "page_size_bytes"_a, "pages_count"_a, nb::kw_only(),
           "hugetlb"_a = false, "prefault"_a = true)
      .def_static(
          "over", &pool_over, "segment"_a, "page_size_bytes"_a, "pages_count"_a, nb::kw_only(),
          "prefault"_a = false,
          "Pages of a shared segment, all of them held back. With `prefault`, granting one "
          "clears and maps it, so that its first users need not wait. UsageError: the segment is "
          "too short.")
      .def_static("stride_bytes", &mem::PagePool::stride_of, "page_size_bytes"_a,
                  "From one page to the next: what a pool needs for each page.")
      .def(
          "grow",
          [](const PoolOwner& self, std::size_t count) {
            return resize(self, &mem::PagePool::grow, count);
          },
          "count"_a,
          "Back up to `count` held-back pages with memory, for use: how many, and why not more "
          "where the system refused.")
      .def(
          "shrink",
          [](const PoolOwner& self, std::size_t count) {
            return resize(self, &mem::PagePool::shrink, count);
          },
          "count"_a,
          "Hold up to `count` free pages back and return their memory: how many, and what failed.")
      .def("claim", &claim, "index"_a,
           "The handle of this very page, granted and allocated, its content kept. UsageError: in "
           "use, or not there. SystemResourceError: the system has none.")
      .def("trim", &trim, "Return the memory that held-back pages still have from a former owner.")
      .def("allocate", &allocate, "The handle of a page, or None when the pool is exhausted.")
      .def("allocate_many", &allocate_many, "count"_a, "All the handles, or None and no page.")
      .def(
          "free",
          [](const PoolOwner& self, std::uint64_t handle) {
            plain(self.pool->free(PageHandle::unpack(handle)));
          },
          "handle"_a, "End the use of a page. ValueError for a handle that is not in use.")
      .def(
          "address",
          [](const PoolOwner& self, std::uint64_t handle) {
            const auto bytes = plain(self.pool->bytes(PageHandle::unpack(handle)));
            return reinterpret_cast<std::uintptr_t>(bytes.data());
          },
          "handle"_a, "Where the page starts in memory. ValueError as free().")
      .def_prop_ro("page_size_bytes",
                   [](const PoolOwner& self) { return self.pool->page_size_bytes(); })
      .def_prop_ro("page_stride_bytes",
                   [](const PoolOwner& self) { return self.pool->page_stride_bytes(); })
      .def_prop_ro("size_bytes",
                   [](const PoolOwner& self) { return self.pool->arena().size_bytes(); })
      .def_prop_ro("huge_pages",
                   [](const PoolOwner& self) {
                     const auto text = name(self.pool->arena().huge_pages());
                     return nb::str(text.data(), text.size());
                   })
      .def_prop_ro("start_address",
                   [](const PoolOwner& self) {
                     return reinterpret_cast<std::uintptr_t>(self.pool->arena().bytes().data());
                   })
      .def_prop_ro("pages_count",
                   [](const PoolOwner& self) { return self.pool->stats().pages_count; })
      .def_prop_ro("free_count",
                   [](const PoolOwner& self) { return self.pool->stats().free_count; })
      .def_prop_ro("granted_count",
                   [](const PoolOwner& self) { return self.pool->stats().granted_count; })
      .def_prop_ro("used_count_max",
                   [](const PoolOwner& self) { return self.pool->stats().used_count_max; });

  nb::class_<Page>(m, "Page", nb::type_slots(page_slots),
                   "A page as a writable buffer. It adopts the handle: it frees the page when it "
                   "goes, unless free() was called.")
      .def(nb::init<const PoolOwner&, std::uint64_t>(), "pool"_a, "handle"_a)
      .def("free", &Page::free, "ValueError when the page was freed before.")
      .def_prop_ro("freed", &Page::freed)
      .def_prop_ro("handle", &Page::handle)
      .def_prop_ro("address", &Page::address, "ValueError when the page was freed.")
      .def_prop_ro("nbytes", &Page::size_bytes);
}

}  // namespace kvferry
