// Pages of a pool that somebody else owns: as buffers, and copied in batches.

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "buffers.hpp"
#include "codec/checksum.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "mem/copy.hpp"
#include "mem/process_memory.hpp"
#include "pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvferry {
namespace {

using mem::PageHandle;

// A writable buffer over a page. It leases the page in the pool while it is exported and owns
// nothing else: whoever allocated the page frees it.
class PageView {
 public:
  PageView(const PoolOwner& owner, std::uint64_t handle)
      : pool_(owner.pool), handle_(PageHandle::unpack(handle)) {
    (void)value_or_raise(pool_->bytes(handle_));
  }
  PageView(const PageView&) = delete;
  PageView& operator=(const PageView&) = delete;

  [[nodiscard]] std::uint64_t handle() const { return handle_.packed(); }
  [[nodiscard]] std::size_t size_bytes() const { return pool_->page_size_bytes(); }

  [[nodiscard]] mem::PagePool& pool() const { return *pool_; }
  [[nodiscard]] PageHandle page() const { return handle_; }

 private:
  const std::shared_ptr<mem::PagePool> pool_;
  const PageHandle handle_;
};

PyType_Slot page_view_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&PageBuffer<PageView>::get)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(&PageBuffer<PageView>::release)},
    {0, nullptr},
};

// Pages that stay what they are for the length of a call.
class LeasedPages {
 public:
  LeasedPages(mem::PagePool& pool, std::size_t count) : pool_(pool) { handles_.reserve(count); }
  ~LeasedPages() {
    for (const PageHandle handle : handles_) {
      [[maybe_unused]] const auto outcome = pool_.release(handle);
    }
  }
  LeasedPages(const LeasedPages&) = delete;
  LeasedPages& operator=(const LeasedPages&) = delete;

  MutableBytes add(PageHandle handle) {
    const MutableBytes bytes = value_or_raise(pool_.lease(handle));
    handles_.push_back(handle);
    return bytes;
  }

 private:
  mem::PagePool& pool_;
  std::vector<PageHandle> handles_;
};

void copy_pages(const PoolOwner& owner, const nb::sequence& handles, const nb::sequence& buffers,
                bool to_pages, unsigned threads) {
  const std::size_t count = nb::len(handles);
  if (nb::len(buffers) != count) {
    raise({Errc::kInvalidArgument,
           std::to_string(count) + " pages and " + std::to_string(nb::len(buffers)) + " buffers"});
  }
  LeasedPages pages(*owner.pool, count);
  Lease leases(count);
  std::vector<mem::Copy> copies;
  copies.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const MutableBytes page = pages.add(PageHandle::unpack(nb::cast<std::uint64_t>(handles[i])));
    const MutableBytes buffer = leases.add(nb::object(buffers[i]).ptr(), !to_pages);
    if (buffer.size() != page.size()) {
      raise_bad_buffer("buffer " + std::to_string(i) + " has " + std::to_string(buffer.size()) +
                       " bytes, a page has " + std::to_string(page.size()));
    }
    copies.push_back(to_pages ? mem::Copy{page, buffer} : mem::Copy{buffer, page});
  }
  const GilRelease unlocked;
  mem::copy_many(copies, threads);
}

std::vector<std::uint64_t> page_checksums(const PoolOwner& owner,
                                          const std::vector<std::uint64_t>& handles) {
  LeasedPages pages(*owner.pool, handles.size());
  std::vector<MutableBytes> bytes;
  bytes.reserve(handles.size());
  for (const std::uint64_t handle : handles) {
    bytes.push_back(pages.add(PageHandle::unpack(handle)));
  }
  std::vector<std::uint64_t> checksums;
  checksums.reserve(bytes.size());
  const GilRelease unlocked;
  for (const MutableBytes page : bytes) checksums.push_back(codec::xxh3_64(page));
  return checksums;
}

// Both buffers are held for the call, and the payload is read and written without the GIL.
std::uint64_t checksum(const nb::object& source, const nb::object& target) {
  const bool copied = !target.is_none();
  Lease leases(2);
  const MutableBytes from = leases.add(source.ptr(), false);
  const MutableBytes to = copied ? leases.add(target.ptr(), true) : MutableBytes{};
  if (copied && to.size() != from.size()) {
    raise_bad_buffer("the target has " + std::to_string(to.size()) + " bytes, the source " +
                     std::to_string(from.size()));
  }
  leases.check_disjoint();
  const GilRelease unlocked;
  if (copied) std::ranges::copy(from, to.begin());
  return codec::xxh3_64(copied ? to : from);
}

// What is summed after it was copied is still in a cache, if it is no more than this.
constexpr std::size_t kReadPieceBytes = 128 * kKiB;

std::vector<std::uint64_t> read_process(pid_t process, const std::vector<std::uint64_t>& addresses,
                                        const nb::sequence& targets) {
  if (nb::len(targets) != addresses.size()) {
    raise({Errc::kInvalidArgument, "there is one target for each address"});
  }
  Lease leases(addresses.size());
  std::vector<MutableBytes> bytes;
  bytes.reserve(addresses.size());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    bytes.push_back(leases.add(nb::object(targets[i]).ptr(), true));
  }
  std::vector<std::uint64_t> checksums;
  checksums.reserve(addresses.size());
  Outcome read = Done{};
  {
    const GilRelease unlocked;
    codec::Xxh3 checksum;
    for (std::size_t i = 0; i < addresses.size() && read; ++i) {
      checksum.reset();
      for (std::size_t at = 0; at < bytes[i].size() && read; at += kReadPieceBytes) {
        const auto piece = bytes[i].subspan(at, std::min(kReadPieceBytes, bytes[i].size() - at));
        read = mem::read_process(process, addresses[i] + at, piece);
        checksum.update(piece);
      }
      checksums.push_back(checksum.digest());
    }
  }
  if (!read) raise(read.error());
  return checksums;
}

}  // namespace

void bind_pages(nb::module_& m) {
  nb::class_<PageView>(m, "PageView", nb::type_slots(page_view_slots),
                       nb::sig("class PageView(typing_extensions.Buffer)"),
                       "A page as a writable buffer that somebody else owns. The page is leased "
                       "in its pool while it is exported.")
      .def(nb::init<const PoolOwner&, std::uint64_t>(), "pool"_a, "handle"_a)
      .def_prop_ro("handle", &PageView::handle)
      .def_prop_ro("nbytes", &PageView::size_bytes);
  m.def("copy_pages", &copy_pages, "pool"_a, "handles"_a, "buffers"_a, "to_pages"_a, "threads"_a,
        nb::sig("def copy_pages(pool: PagePool, handles: collections.abc.Sequence[int], "
                "buffers: collections.abc.Sequence[typing.Any], to_pages: bool, threads: int) "
                "-> None"),
        "Between pages and buffers of their length, without the GIL, by up to `threads` threads.");
  m.def("page_checksums", &page_checksums, "pool"_a, "handles"_a,
        "XXH3-64 of each page, without the GIL.");
  m.def("checksum", &checksum, "source"_a, "target"_a = nb::none(),
        nb::sig("def checksum(source: typing.Any, target: typing.Any | None = None) -> int"),
        "XXH3-64 of a buffer, without the GIL. With a target of its length it is copied there "
        "first, and what was copied is what is summed.");
  m.def("read_process", &read_process, "process"_a, "addresses"_a, "targets"_a,
        nb::sig("def read_process(process: int, addresses: collections.abc.Sequence[int], "
                "targets: collections.abc.Sequence[typing.Any]) -> list[int]"),
        "Copies memory of another process into buffers, without the GIL; XXH3-64 of each. Raises "
        "SystemResourceError when it cannot be read.");
  m.def("admit_readers", &mem::admit_readers,
        "Lets other processes of this user read the memory of this one.");
}

}  // namespace kvferry
