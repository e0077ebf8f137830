#pragma once
// Stream: a connected byte stream that never blocks. TCP and Unix sockets here; TLS joins as
// another implementation of the same calls.
//
// Threads: owned by one thread. Failure: kClosed and kFailed are final.

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.hpp"
#include "net/address.hpp"

namespace kvferry::net {

enum class IoState : std::uint8_t {
  kOk,          // `bytes` were moved, at least one
  kWouldBlock,  // nothing can be moved now
  kClosed,      // the peer ended the stream
  kFailed,      // `sys_errno` says why
};

struct IoResult {
  IoState state = IoState::kOk;
  std::size_t bytes = 0;
  int sys_errno = 0;
};

// Why a stream ended, in words. Requires: kClosed or kFailed.
[[nodiscard]] std::string reason(const IoResult& result);

class Stream {
 public:
  virtual ~Stream() = default;

  [[nodiscard]] virtual int fd() const noexcept = 0;
  // Completes the connection after fd() became writable. kWouldBlock: not yet.
  virtual IoResult finish_connect() noexcept = 0;
  // Scatter and gather; the memory is only touched during the call.
  virtual IoResult receive(std::span<const iovec> pieces) noexcept = 0;
  virtual IoResult send(std::span<const iovec> pieces) noexcept = 0;
  // Bytes that were sent and that the peer has not taken yet; 0 where nobody can tell.
  [[nodiscard]] virtual std::size_t unsent_bytes() const noexcept = 0;
  // Asks not to be called readable before `bytes` are there (a hint that saves wake-ups; 1: off).
  virtual void set_receive_low_water(std::size_t bytes) noexcept = 0;
};

// Starts to connect; returns at once. The stream is usable once finish_connect() says kOk.
// TCP: no delay, keep-alive (30 s, 5 s, 3 probes) and a limit on unacknowledged data.
// Fails with: kSystem (no descriptors), kConnect (refused at once).
Result<std::unique_ptr<Stream>> open_stream(const Address& address);

}  // namespace kvferry::net
