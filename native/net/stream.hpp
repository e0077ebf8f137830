#pragma once
// Stream: a connected byte stream that never blocks. TCP and Unix sockets here; TLS (tls.hpp) is
// another implementation of the same calls.
//
// Threads: owned by one thread. Failure: kClosed, kFailed and kRefused are final.

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "net/address.hpp"

namespace kvferry::net {

enum class IoState : std::uint8_t {
  kOk,          // `bytes` were moved, at least one
  kWouldBlock,  // nothing can be moved now
  kClosed,      // the peer ended the stream
  kFailed,      // `sys_errno` says why
  kRefused,     // TLS: one side does not accept the other. Trying again will not help.
};

struct IoResult {
  IoState state = IoState::kOk;
  std::size_t bytes = 0;
  int sys_errno = 0;
};

// Why a stream ended, in words. Requires: kClosed, kFailed or kRefused.
[[nodiscard]] std::string reason(const IoResult& result);

// What a TLS handshake agreed on.
struct TlsFacts {
  std::string version;  // "TLSv1.3"
  std::string cipher;   // "TLS_AES_128_GCM_SHA256"
  bool resumed = false;
  bool ktls_send = false;  // the kernel encrypts
  bool ktls_receive = false;
};

class Stream {
 public:
  virtual ~Stream() = default;

  [[nodiscard]] virtual int fd() const noexcept = 0;
  // Completes the connection after fd() became ready. kWouldBlock: not yet.
  virtual IoResult finish_connect() noexcept = 0;
  // What finish_connect() waits for after kWouldBlock: bytes, or (false) room to send.
  [[nodiscard]] virtual bool awaits_readable() const noexcept { return false; }
  // Scatter and gather; the memory is only touched during the call. A receive() that moves fewer
  // bytes than asked for has emptied the stream: fd() becomes readable when there is more. After
  // one that filled all pieces call it again: the next bytes may have left the socket already.
  // What was given to send() leaves in calls of send() alone: an answer to it is never received
  // before the send() that reports its last byte.
  virtual IoResult receive(std::span<const iovec> pieces) noexcept = 0;
  virtual IoResult send(std::span<const iovec> pieces) noexcept = 0;
  // Bytes that were sent and that the peer has not taken yet; 0 where nobody can tell.
  [[nodiscard]] virtual std::size_t unsent_bytes() const noexcept = 0;
  // Asks not to be called readable before `bytes` are there (a hint that saves wake-ups; 1: off).
  virtual void set_receive_low_water(std::size_t bytes) noexcept = 0;
  // Ends the stream so that what was sent and has not arrived never does, as far as that can be:
  // TCP resets the connection, and drops what the kernel still holds for the peer. Over a Unix
  // socket all that was sent has arrived. Only the destructor may follow.
  virtual void reset() noexcept = 0;
  // Why this stream ended with `result`; knows more than reason().
  [[nodiscard]] virtual std::string failure(const IoResult& result) const { return reason(result); }
  // Requires: finish_connect() said kOk. Nothing on a stream without TLS.
  [[nodiscard]] virtual std::optional<TlsFacts> tls_facts() const { return std::nullopt; }
};

// Starts to connect; returns at once. The stream is usable once finish_connect() says kOk.
// TCP: no delay, keep-alive (30 s, 5 s, 3 probes) and a limit on unacknowledged data. Unix: 512 KiB
// to send, as far as the kernel allows.
// Fails with: kSystem (no descriptors), kConnect (refused at once).
Result<std::unique_ptr<Stream>> open_stream(const Address& address);

// The server's end of a connection that was accepted, with the same options. Requires: a descriptor
// that does not block.
[[nodiscard]] std::unique_ptr<Stream> adopt_stream(UniqueFd fd, const Address& peer);

}  // namespace kvferry::net
