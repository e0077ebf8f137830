#pragma once
// SharedPages: the pages of somebody else's segment, as a client has them: by index, to read and
// write where the owner allows it. Who may use which page when is not known here.
//
// A page's first use in a process costs a page fault for each 4 KiB, unless they are taken all at
// once: prepare() before a copy. It may fail where a fault would end the process.
// Only pages that the owner has granted may be touched or prepared: others would take memory that
// the owner believes to be free.
// Lifetime: the mapping, and with it the lock, ends with this object.
// Threads: any. Fork: see SharedSegment.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "mem/shared_segment.hpp"

namespace kvferry::mem {

struct PageGeometry {
  std::size_t stride_bytes = 0;  // from one page to the next
  std::size_t size_bytes = 0;    // of a page
  std::size_t count = 0;
};

class SharedPages {
 public:
  // Fails with: what SharedSegment::attach fails with; kInvalidArgument for pages that overlap or
  // do not fit.
  static Result<std::shared_ptr<SharedPages>> attach(std::string path, std::size_t segment_bytes,
                                                     PageGeometry geometry, std::uint64_t lock);

  [[nodiscard]] const PageGeometry& geometry() const noexcept { return geometry_; }
  // Requires: index < geometry().count, here and below.
  [[nodiscard]] MutableBytes page(std::size_t index) const noexcept {
    return segment_->bytes().subspan(index * geometry_.stride_bytes, geometry_.size_bytes);
  }
  // Maps all of a page at its first use. Fails with: kSystem when there is no memory behind it.
  Outcome prepare(std::size_t index);
  // The same for every page, piece by piece. Requires: all of them are granted.
  Outcome prepare_all();

  // Mapping and lock stay until the end of the object.
  void close_descriptor() noexcept { segment_->close_descriptor(); }

 private:
  SharedPages(std::unique_ptr<SharedSegment> segment, PageGeometry geometry)
      : segment_(std::move(segment)), geometry_(geometry), used_(geometry.count) {}

  const std::unique_ptr<SharedSegment> segment_;
  const PageGeometry geometry_;
  // Whether a page was used before. Relaxed: done twice or seen late, it costs time only.
  std::vector<std::atomic<bool>> used_;
};

}  // namespace kvferry::mem
