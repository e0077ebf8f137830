#pragma once
// What stands behind a Python SharedSegment; shared with the pools over it.

#include <memory>

#include "errors.hpp"
#include "mem/shared_segment.hpp"

namespace kvferry {

// Empty once closed.
struct SegmentOwner {
  // Raises ClosedError.
  [[nodiscard]] mem::SharedSegment& get() const {
    if (!segment) raise({Errc::kClosed, "the shared segment is closed"});
    return *segment;
  }
  std::shared_ptr<mem::SharedSegment> segment;  // owners: this, and pools over it
};

}  // namespace kvferry
