#include "net/poller.hpp"

#include <algorithm>
#include <cerrno>

namespace kvferry::net {

Result<Poller> Poller::open() {
  UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd) return system_error("epoll_create1", errno);
  return Poller(std::move(fd));
}

Outcome Poller::watch(int fd, std::uint64_t token, bool readable, bool writable) noexcept {
  epoll_event event{};
  event.events = (readable ? EPOLLIN | EPOLLRDHUP : 0u) | (writable ? EPOLLOUT : 0u);
  event.data.u64 = token;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return Done{};
  if (errno == ENOENT && ::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Done{};
  return system_error("epoll_ctl", errno);
}

void Poller::forget(int fd) noexcept { ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }

std::span<const Ready> Poller::wait(Nanos timeout) noexcept {
  int milliseconds = -1;
  if (timeout != kNever) {
    const Nanos rounded = (std::max<Nanos>(timeout, 0) + kMilli - 1) / kMilli;
    milliseconds = static_cast<int>(std::min<Nanos>(rounded, 60'000));
  }
  const int count =
      ::epoll_wait(fd_.get(), events_.data(), static_cast<int>(events_.size()), milliseconds);
  std::size_t filled = 0;
  for (int index = 0; index < count; ++index) {
    const epoll_event& event = events_[static_cast<std::size_t>(index)];
    ready_[filled++] = {
        .token = event.data.u64,
        .readable = (event.events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0,
        .writable = (event.events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0};
  }
  return {ready_.data(), filled};
}

}  // namespace kvferry::net
