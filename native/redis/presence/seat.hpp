#pragma once
// PresenceSeat: of all clients of a user and a host that could keep one view, the one that does.
//
// The seat is an abstract Unix socket: the name can be bound once for each network namespace, and
// the kernel frees it with its last holder, however that ended. Nothing is sent over it. Whoever
// takes the name of another user only keeps him from having a view.
//
// Threads: one at a time. After fork() the child lets go: what it holds is the parent's seat too.
// Source: unix(7).

#include <string>

#include "base/unique_fd.hpp"

namespace kvferry::redis {

class PresenceSeat {
 public:
  // `name`: of whoever would keep the same view; empty: there is no other.
  explicit PresenceSeat(std::string name) : name_(std::move(name)) {}

  // Tries to take it, without waiting; whether it is ours now.
  bool take();
  void let_go() noexcept { socket_.reset(); }
  [[nodiscard]] bool taken() const noexcept { return name_.empty() || socket_; }

 private:
  const std::string name_;
  UniqueFd socket_;
};

}  // namespace kvferry::redis
