#pragma once
// Transport and Watcher: the two things a connection needs of the network. Sockets and epoll are
// one implementation, TLS another of the first, the simulation (native/sim) one of both.
//
// Threads: a Transport is shared by all; a Watcher belongs to one thread.

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/result.hpp"
#include "net/address.hpp"
#include "net/stream.hpp"

namespace kvferry::net {

class TlsContext;

class Transport {
 public:
  virtual ~Transport() = default;
  // Starts to connect; returns at once. `host` is what the user called the server.
  virtual Result<std::unique_ptr<Stream>> open(const Address& address, std::string_view host) = 0;
};

class Watcher {
 public:
  virtual ~Watcher() = default;
  // Starts or changes what is watched; readiness is reported with `token`. Fails with: kSystem.
  virtual Outcome watch(int fd, std::uint64_t token, bool readable, bool writable) noexcept = 0;
  virtual void forget(int fd) noexcept = 0;
};

// TCP and Unix sockets as they are.
[[nodiscard]] std::shared_ptr<Transport> plain_transport();
// TLS over them.
[[nodiscard]] std::shared_ptr<Transport> tls_transport(std::shared_ptr<TlsContext> context);

}  // namespace kvferry::net
