// Shared segments for Python: the owner's SharedSegment and the client's SharedPages.
//
// Lifetime: pools over a segment, and views of pages, keep the mapping. close() gives up only what
// the object itself has.
// Threads: the native classes say; memory is moved and copied without the GIL.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "buffers.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "mem/copy.hpp"
#include "mem/shared_pages.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

using mem::SharedPages;
using mem::SharedSegment;

// --- The owner
// ------------------------------------------------------------------------------------

using Factory = Result<std::unique_ptr<SharedSegment>> (*)(std::string, std::size_t);

std::unique_ptr<SegmentOwner> make_segment(Factory factory, std::string path,
                                           std::size_t size_bytes, bool keep) {
  std::shared_ptr<SharedSegment> segment = value_or_raise(factory(std::move(path), size_bytes));
  segment->keep(keep);
  return std::make_unique<SegmentOwner>(SegmentOwner{std::move(segment)});
}

std::vector<bool> locks_held(const SegmentOwner& self, const std::vector<std::uint64_t>& locks) {
  std::vector<std::uint8_t> held(locks.size());
  value_or_raise(self.get().locks_held(locks, held));
  return std::vector<bool>(held.begin(), held.end());
}

void close_segment(SegmentOwner& self) {
  const auto segment = std::exchange(self.segment, nullptr);
  if (segment && !segment->kept()) segment->unlink();
}

// --- The client
// -----------------------------------------------------------------------------------

// A page as a writable buffer. The mapping lives as long as this does.
class SharedPageView {
 public:
  SharedPageView(std::shared_ptr<SharedPages> pages, std::size_t index)
      : pages_(std::move(pages)), index_(index) {}

  [[nodiscard]] MutableBytes bytes() const { return pages_->page(index_); }
  [[nodiscard]] std::size_t index() const { return index_; }

  static int get(PyObject* self, Py_buffer* view, int flags) noexcept {
    view->obj = nullptr;
    if (!nb::inst_ready(self)) {
      PyErr_SetString(PyExc_BufferError, "the page was not initialised");
      return -1;
    }
    const MutableBytes bytes = nb::inst_ptr<SharedPageView>(self)->bytes();
    return PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()),
                             /*readonly=*/0, flags);
  }

 private:
  const std::shared_ptr<SharedPages> pages_;  // owners: SharedPages of Python, and its views
  const std::size_t index_;
};

PyType_Slot shared_page_view_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&SharedPageView::get)},
    {0, nullptr},
};

// What Python holds; empty once closed.
struct PagesOwner {
  [[nodiscard]] const std::shared_ptr<SharedPages>& get() const {
    if (!pages) raise({Errc::kClosed, "the shared pages are closed"});
    return pages;
  }
  std::shared_ptr<SharedPages> pages;
};

void attach(PagesOwner* self, std::string path, std::size_t segment_bytes, std::size_t page_stride,
            std::size_t page_bytes, std::size_t pages, std::uint64_t lock) {
  new (self) PagesOwner{value_or_raise(SharedPages::attach(
      std::move(path), segment_bytes,
      {.stride_bytes = page_stride, .size_bytes = page_bytes, .count = pages}, lock))};
}

std::size_t checked(const SharedPages& pages, std::int64_t index) {
  if (index < 0 || static_cast<std::size_t>(index) >= pages.geometry().count) {
    raise({Errc::kInvalidArgument, "there is no page " + std::to_string(index) + "; there are " +
                                       std::to_string(pages.geometry().count)});
  }
  return static_cast<std::size_t>(index);
}

void copy(const PagesOwner& self, const std::vector<std::int64_t>& indexes,
          const nb::sequence& buffers, bool to_pages, unsigned threads) {
  const std::shared_ptr<SharedPages> pages = self.get();  // close() may come meanwhile
  if (nb::len(buffers) != indexes.size()) {
    raise({Errc::kInvalidArgument, std::to_string(indexes.size()) + " pages and " +
                                       std::to_string(nb::len(buffers)) + " buffers"});
  }
  Lease leases(indexes.size());
  std::vector<mem::Copy> copies;
  copies.reserve(indexes.size());
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    const MutableBytes page = pages->page(checked(*pages, indexes[i]));
    const MutableBytes buffer = leases.add(nb::object(buffers[i]).ptr(), !to_pages);
    if (buffer.size() != page.size()) {
      raise_bad_buffer("buffer " + std::to_string(i) + " has " + std::to_string(buffer.size()) +
                       " bytes, a page has " + std::to_string(page.size()));
    }
    copies.push_back(to_pages ? mem::Copy{page, buffer} : mem::Copy{buffer, page});
  }
  Outcome prepared = Done{};
  {
    const GilRelease unlocked;
    for (std::size_t i = 0; i < indexes.size() && prepared; ++i) {
      prepared = pages->prepare(static_cast<std::size_t>(indexes[i]));
    }
    if (prepared) mem::copy_many(copies, threads);
  }
  value_or_raise(std::move(prepared));
}

void populate(const PagesOwner& self) {
  const std::shared_ptr<SharedPages> pages = self.get();
  auto done = [&] {
    const GilRelease unlocked;
    return pages->prepare_all();
  }();
  value_or_raise(std::move(done));
}

void close_pages(PagesOwner& self) {
  const auto pages = std::exchange(self.pages, nullptr);
  if (pages) pages->close_descriptor();
}

}  // namespace

void bind_shared(nb::module_& m) {
  nb::class_<SegmentOwner>(
      m, "SharedSegment",
      "A file in memory that this process owns and clients map; see PagePool.over(). The owner "
      "lock is held until the object and every pool over it are gone; the file goes with close() "
      "unless it is kept.")
      .def_static(
          "create",
          [](std::string path, std::size_t size_bytes, bool keep) {
            return make_segment(&SharedSegment::create, std::move(path), size_bytes, keep);
          },
          "path"_a, "size_bytes"_a, nb::kw_only(), "keep"_a = false,
          "A new file of mode 0600, rounded up to whole blocks, without memory. UsageError: a size "
          "that cannot be. SystemResourceError: the file exists, or the system "
          "refuses.")
      .def_static(
          "open",
          [](std::string path, std::size_t size_bytes, bool keep) {
            return make_segment(&SharedSegment::open, std::move(path), size_bytes, keep);
          },
          "path"_a, "size_bytes"_a, nb::kw_only(), "keep"_a = false,
          "What a former owner left. UsageError: a file that is not ours, not private, or of "
          "another length. CapacityError: it has an owner. SystemResourceError: no such file.")
      .def(
          "lock_is_held",
          [](const SegmentOwner& self, std::uint64_t lock) {
            return value_or_raise(self.get().lock_is_held(lock));
          },
          "lock"_a,
          "Whether anybody else holds the lock on this byte: until its descriptors and mappings "
          "are gone.")
      .def(
          "forget",
          [](const SegmentOwner& self) {
            const std::shared_ptr<SharedSegment> segment = self.segment;
            if (!segment) return;
            const GilRelease unlocked;
            segment->forget();
          },
          "Drop the page tables of this process, without the GIL; content and memory stay.")
      .def("locks_held", &locks_held, "locks"_a, "lock_is_held() of each.")
      .def(
          "unlink", [](const SegmentOwner& self) { return self.get().unlink(); },
          "Remove the file now, if it is still this one; mappings live on. Whether it did.")
      .def("close", &close_segment,
           "Remove the file unless it is kept, and give up this object's part in the mapping. "
           "Again is fine.")
      .def_prop_rw(
          "keep", [](const SegmentOwner& self) { return self.get().kept(); },
          [](const SegmentOwner& self, bool keep) { self.get().keep(keep); },
          "Whether the file stays when this process is done with it.")
      .def_prop_ro("path", [](const SegmentOwner& self) { return self.get().path(); })
      .def_prop_ro("size_bytes", [](const SegmentOwner& self) { return self.get().size_bytes(); })
      .def_prop_ro("block_size_bytes",
                   [](const SegmentOwner& self) { return self.get().block_size_bytes(); })
      .def_prop_ro("huge_pages", [](const SegmentOwner& self) {
        const auto text = name(self.get().arena().huge_pages());
        return nb::str(text.data(), text.size());
      });

  nb::class_<SharedPageView>(m, "SharedPageView", nb::type_slots(shared_page_view_slots),
                             nb::sig("class SharedPageView(typing_extensions.Buffer)"),
                             "A page of a segment as a writable buffer; it keeps the mapping.")
      .def_prop_ro("index", &SharedPageView::index)
      .def_prop_ro("nbytes", [](const SharedPageView& self) { return self.bytes().size(); });

  nb::class_<PagesOwner>(
      m, "SharedPages",
      "The pages of another process's segment, mapped, with the lock of byte `lock` until the "
      "last view is gone. Only pages that the owner granted may be touched.")
      .def("__init__", &attach, "path"_a, "segment_bytes"_a, "page_stride"_a, "page_bytes"_a,
           "pages"_a, "lock"_a,
           "UsageError: a file that is not ours, not private, or of another length; pages that do "
           "not fit. CapacityError: somebody has that lock. SystemResourceError: no such file.")
      .def(
          "view",
          [](const PagesOwner& self, std::int64_t index) {
            return std::make_unique<SharedPageView>(self.get(), checked(*self.get(), index));
          },
          "index"_a, "A page as a buffer. UsageError: there is no such page.")
      .def("copy", &copy, "indexes"_a, "buffers"_a, "to_pages"_a, "threads"_a,
           nb::sig("def copy(self, indexes: collections.abc.Sequence[int], "
                   "buffers: collections.abc.Sequence[typing.Any], to_pages: bool, threads: int) "
                   "-> None"),
           "Between pages and buffers of their length, without the GIL, by up to `threads` "
           "threads. UsageError: no such page. BadBufferError: another length, or read-only. "
           "SystemResourceError: no memory behind a page.")
      .def("populate", &populate,
           "Map everything now, without the GIL, so that no first use pays for it. Only where the "
           "owner has granted every page: others take memory.")
      .def("close", &close_pages,
           "Give up this object's part; the mapping and the lock end with the last view. Again is "
           "fine.")
      .def_prop_ro("closed", [](const PagesOwner& self) { return self.pages == nullptr; })
      .def_prop_ro("page_bytes",
                   [](const PagesOwner& self) { return self.get()->geometry().size_bytes; })
      .def_prop_ro("pages_count",
                   [](const PagesOwner& self) { return self.get()->geometry().count; });
}

}  // namespace kvferry
