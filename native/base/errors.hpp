#pragma once
// What can go wrong, as values.
//
// Status is the outcome of one key; it crosses into Python as one byte, so its numbers are fixed.
// Error is why a call or a connection failed; it travels in Result<T> and never as an exception.
// Reason is why a key has no value: what of an Error a batch keeps.
// Secrets and payload never enter `context`.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvferry {

enum class Status : std::uint8_t {
  kOk = 0,
  kMiss = 1,          // no such key: a legal answer at any time
  kSizeMismatch = 2,  // the stored value is not as long as the buffer; buffer content undefined
  kCorrupt = 3,       // frame or checksum wrong; treated as a miss
  kTimeout = 4,       // the deadline passed before the reply was complete
  kUnavailable = 5,   // the server cannot be reached, or it refuses us
  kServerError = 6,   // the server answered with an error
  kCancelled = 7,     // the caller withdrew the request
  kPending = 255,     // no outcome yet; never seen by callers
};

enum class Errc : std::uint8_t {
  kInvalidArgument,  // the caller's mistake; nothing was sent
  kClosed,           // the object was closed
  kForked,           // the object belongs to the parent process
  kCapacity,         // a stated limit was reached; try again later
  kTimeout,
  kResolve,      // the host name has no address
  kConnect,      // no address accepted the connection
  kDisconnect,   // the connection ended
  kProtocol,     // the peer broke the protocol; the connection cannot be trusted
  kAuth,         // the server refused the credentials
  kServer,       // any other error reply
  kSystem,       // the operating system refused a resource
  kCertificate,  // TLS: a certificate or key is of no use, or one side refuses the other
};

struct Error {
  Errc code;
  std::string context;  // a sentence for people: address, action, server text
};

// A view: it lives no longer than what it was made of.
struct Reason {
  Reason() = default;
  Reason(const char* told) : text(told) {}                               // NOLINT implicit
  Reason(std::string_view told) : text(told) {}                          // NOLINT implicit
  Reason(const std::string& told) : text(told) {}                        // NOLINT implicit
  Reason(const Error& error) : text(error.context), code(error.code) {}  // NOLINT implicit
  Reason(std::string_view told, std::optional<Errc> kind) : text(told), code(kind) {}

  std::string_view text;
  std::optional<Errc> code;  // none: the status says enough
};

// "<action>: <strerror(sys_errno)>" with code kSystem unless stated.
[[nodiscard]] Error system_error(std::string_view action, int sys_errno, Errc code = Errc::kSystem);

}  // namespace kvferry
