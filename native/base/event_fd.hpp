#pragma once
// EventFd: a counter that makes a file descriptor readable. One thread waits, any thread signals.

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace kvferry {

class EventFd {
 public:
  // Fails with: kSystem when the process has no file descriptors left.
  static Result<EventFd> open();

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  // Makes fd() readable. Any thread; never blocks.
  void signal() const noexcept;
  // Makes fd() unreadable until the next signal().
  void clear() const noexcept;

 private:
  explicit EventFd(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace kvferry
