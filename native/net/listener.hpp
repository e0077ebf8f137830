#pragma once
// Listener: a TCP or Unix socket that others connect to.
//
// Threads: one at a time. Lifetime: move-only; the destructor ends it, and removes the path of a
// Unix socket. A path that a dead process left is taken over; one where somebody listens is not.
// Failure: kConnect when the address is taken, kResolve and kSystem as their names say.

#include <memory>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "net/address.hpp"
#include "net/stream.hpp"

namespace kvferry::net {

struct Accepted {
  std::unique_ptr<Stream> stream;
  std::string peer;  // "host:port", or "unix:"
};

class Listener {
 public:
  // Port 0: any free one. A Unix socket is for our user alone.
  static Result<Listener> open(const Endpoint& endpoint);
  Listener(Listener&& other) noexcept = default;
  Listener& operator=(Listener&& other) = delete;
  ~Listener();

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  // Where it listens, with its port.
  [[nodiscard]] const Endpoint& endpoint() const noexcept { return endpoint_; }

  // The next one that waits. Fails with: kSystem, also when there are no descriptors left.
  Result<std::optional<Accepted>> accept();

 private:
  Listener(UniqueFd fd, Endpoint endpoint) : fd_(std::move(fd)), endpoint_(std::move(endpoint)) {}

  UniqueFd fd_;
  Endpoint endpoint_;
};

}  // namespace kvferry::net
