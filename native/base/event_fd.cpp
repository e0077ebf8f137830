#include "base/event_fd.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>

namespace kvferry {

Result<EventFd> EventFd::open() {
  UniqueFd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd) return system_error("eventfd", errno);
  return EventFd(std::move(fd));
}

void EventFd::signal() const noexcept {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the descriptor is readable already.
  [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
}

void EventFd::clear() const noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t read = ::read(fd_.get(), &count, sizeof count);
}

}  // namespace kvferry
