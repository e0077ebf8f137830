#pragma once
// Mailbox: what other threads want of one I/O thread: to take a new connection, or to look at one
// that it has.
//
// Threads: post() and give() from any; take() from the owner, when fd() is readable.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/event_fd.hpp"
#include "net/stream.hpp"

namespace kvferry::node {

struct NewConnection {
  std::unique_ptr<net::Stream> stream;
  std::string address;  // of the peer
};

class Mailbox {
 public:
  struct Mail {
    std::vector<NewConnection> connections;
    std::vector<std::uint64_t> clients;  // whose session has news; see Clients
  };

  explicit Mailbox(EventFd event) noexcept : event_(std::move(event)) {}

  [[nodiscard]] int fd() const noexcept { return event_.fd(); }
  void wake() const noexcept { event_.signal(); }

  void give(NewConnection connection) {
    {
      const std::lock_guard lock(mutex_);
      mail_.connections.push_back(std::move(connection));
    }
    wake();
  }
  void post(std::uint64_t client) {
    {
      const std::lock_guard lock(mutex_);
      mail_.clients.push_back(client);
    }
    wake();
  }
  Mail take() {
    event_.clear();
    const std::lock_guard lock(mutex_);
    return std::exchange(mail_, {});
  }

 private:
  EventFd event_;
  std::mutex mutex_;
  Mail mail_;
};

}  // namespace kvferry::node
