#pragma once
// BufferSource: memory for values that is named when they come, and not when they are asked for.
//
// Who asks for what is perhaps not there owns no memory for it. The reader of a reply that brings a
// value calls buffer() before it writes the first byte of it.
//
// Threads: any. Neither call waits for anything but a short lock.

#include <cstddef>

namespace kvferry::mem {

class BufferSource {
 public:
  virtual ~BufferSource() = default;
  // Where a value starts that comes now: as long as it was said to be when it was asked for, and
  // the same for each part of it. Null: nobody wants it.
  virtual std::byte* buffer(std::size_t index) noexcept = 0;
  // Whether anything is still wanted: else nothing more need be asked for.
  [[nodiscard]] virtual bool wanted() const noexcept = 0;
};

}  // namespace kvferry::mem
