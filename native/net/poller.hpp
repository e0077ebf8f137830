#pragma once
// Poller: which descriptors are ready, by epoll (level triggered).
//
// Threads: owned by one thread.

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <span>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "net/transport.hpp"

namespace kvferry::net {

struct Ready {
  std::uint64_t token;  // as given to watch()
  bool readable;        // bytes, or the end of the stream, or an error
  bool writable;
};

class Poller final : public Watcher {
 public:
  static Result<Poller> open();

  Outcome watch(int fd, std::uint64_t token, bool readable, bool writable) noexcept override;
  void forget(int fd) noexcept override;

  // Waits until something is ready or `timeout` has passed (kNever: no limit; rounded up to 1 ms).
  // The result is valid until the next call.
  std::span<const Ready> wait(Nanos timeout) noexcept;

 private:
  explicit Poller(UniqueFd fd) noexcept : fd_(std::move(fd)) {}

  UniqueFd fd_;
  std::array<epoll_event, 64> events_{};
  std::array<Ready, 64> ready_{};
};

}  // namespace kvferry::net
