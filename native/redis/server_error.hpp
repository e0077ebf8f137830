#pragma once
// What a server's error text means for the client (docs of Redis and Valkey, "error handling").

#include <string>
#include <string_view>

#include "base/errors.hpp"

namespace kvferry::redis {

inline constexpr std::size_t kErrorTextMax = 200;

enum class ServerErrorKind {
  kCommand,      // this command was refused; the connection and the server are well
  kBusy,         // the server cannot serve now: LOADING, BUSY, MASTERDOWN, CLUSTERDOWN
  kRedirect,     // another node has the key, or will have it soon: MOVED, ASK, TRYAGAIN
  kReconnect,    // this connection is of no use any more: READONLY, NOAUTH
  kCredentials,  // wrong user or password
  kUnknown,      // the server does not know the command or the protocol version
};

[[nodiscard]] ServerErrorKind classify(std::string_view text) noexcept;

// Whether no other words would do where this one was refused as a greeting (HELLO, AUTH): the
// credentials are wrong, or the server takes nobody now. Whatever else a server or proxy says, it
// may know an older greeting. The pure client has the same list (client/pure/resp.py).
[[nodiscard]] bool ends_greeting(std::string_view text) noexcept;

// kAuth where it refuses who we are, else kServer.
[[nodiscard]] Errc error_code(std::string_view text) noexcept;

// `text` cut to kErrorTextMax, and ASCII without control characters: what may go into a log.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace kvferry::redis
