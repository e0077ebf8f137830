#pragma once
// TlsSetup: certificates and rules as OpenSSL has loaded them, with the sessions that were agreed
// on under them. Immutable but for the sessions; changed files make another one.
//
// Threads: any, at the same time. Limits: those of TlsSessions.

#include <openssl/ssl.h>

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/bytes.hpp"
#include "base/result.hpp"
#include "net/tls.hpp"

namespace kvferry::net {

template <auto kFree>
struct TlsFree {
  template <typename T>
  void operator()(T* object) const noexcept {
    kFree(object);
  }
};
using TlsSession = std::unique_ptr<SSL_SESSION, TlsFree<SSL_SESSION_free>>;

// What may be resumed. A resumed handshake verifies nothing anew, so a session is only offered to
// the peer (host and address) that it came from. One of TLS 1.3 is used once (RFC 8446, C.4, and
// OpenSSL insists), so there are as many as several connections need that dial at once.
class TlsSessions {
 public:
  static constexpr std::size_t kPeersMax = 1024;
  static constexpr std::size_t kSessionsMax = 16;  // of one peer; the newest are kept
  static constexpr std::size_t kTicketBytesMax = 4 * kKiB;

  [[nodiscard]] TlsSession take(const std::string& peer);
  void keep(const std::string& peer, TlsSession session);
  void forget(const std::string& peer);

 private:
  std::mutex mutex_;
  std::map<std::string, std::deque<TlsSession>> sessions_;
};

struct TlsSetup {
  // Fails with: as TlsContext::open().
  static Result<std::shared_ptr<TlsSetup>> load(const TlsConfig& config, TlsRole role);

  std::unique_ptr<SSL_CTX, TlsFree<SSL_CTX_free>> context;
  TlsSessions sessions;
};

}  // namespace kvferry::net
