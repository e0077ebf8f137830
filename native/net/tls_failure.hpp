#pragma once
// What went wrong in TLS, in words and as a state. Reads and empties OpenSSL's queue of errors.
//
// Texts come from OpenSSL's own tables, never from the peer or from a key file.

#include <openssl/types.h>

#include <string>
#include <string_view>

#include "net/stream.hpp"

namespace kvferry::net {

struct TlsFailure {
  IoState state;  // kFailed or kRefused
  std::string text;
};

// The oldest error of this thread's queue, which is the cause: "bad decrypt". Empties the queue.
[[nodiscard]] std::string take_tls_error();

// Why the handshake or a record failed, other than by the socket. `name` is what was verified.
[[nodiscard]] TlsFailure take_tls_failure(const SSL* ssl, std::string_view name);

}  // namespace kvferry::net
