#pragma once
// TlsContext: what all TLS streams of one client, or of one server, share: certificates, rules,
// sessions to resume.
//
// Certificate files are looked at before every dial, and for everybody who comes (a stat() each),
// and loaded anew when they changed; files that cannot be used keep the earlier ones, and `notify`
// hears of it once. A client resumes sessions per host and address, so a connection that dials
// again skips the expensive half of a handshake.
//
// A TLS stream decrypts into the caller's memory, and what one piece of a send() holds never shares
// a record with the next piece: a server receives the head of a SET apart from its value.
//
// Threads: any, at the same time; `notify` runs on the thread that dials or accepts. The streams
// belong to one thread each and keep the context alive. TLS is 1.2 or later; no compression, no
// renegotiation.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/log_sink.hpp"
#include "base/result.hpp"
#include "net/address.hpp"
#include "net/stream.hpp"

namespace kvferry::net {

enum class TlsVerify : std::uint8_t {
  kFull,  // a trusted chain, and the name or address that was dialled
  kCa,    // a trusted chain
  kNone,  // anything: encrypts, but an active attacker can read along
};

enum class TlsRole : std::uint8_t {
  kClient,
  kServer,  // needs a certificate; where authorities are named, clients must show one of theirs
};

struct TlsConfig {
  bool enabled = false;
  std::string ca_file{};            // PEM; none: what the system trusts
  std::string cert_file{};          // our chain, PEM, own certificate first
  std::string key_file{};           // without a password
  std::string server_name{};        // asked for and verified instead of the host that is dialled
  std::string min_version = "1.2";  // or "1.3"
  std::string ciphers{};  // OpenSSL names with ':' between; those of TLS 1.3 begin with TLS_
  TlsVerify verify = TlsVerify::kFull;
  bool ktls = true;  // let the kernel encrypt, where it and OpenSSL can
};

// What this host offers for TLS in the kernel.
struct KtlsOffer {
  bool openssl;  // this OpenSSL was built with it
  bool kernel;   // the kernel has the module `tls`
};
[[nodiscard]] KtlsOffer probe_ktls() noexcept;

class TlsContext {
 public:
  using Notify = std::function<void(LogLevel, std::string)>;

  // Loads everything. Fails with: kCertificate (names the file, and OpenSSL's reason),
  // kInvalidArgument (min_version, ciphers, a certificate without its key or the other way round,
  // a server without both).
  static Result<std::shared_ptr<TlsContext>> open(TlsConfig config, Notify notify = {},
                                                  TlsRole role = TlsRole::kClient);
  virtual ~TlsContext() = default;

  // Starts to connect; returns at once. finish_connect() includes the handshake, and ends in
  // kRefused when a certificate, name, version or cipher does not suit one of the two sides.
  // `host` is what the user or the cluster named: it is asked for (SNI) and verified.
  // Fails with: as open_stream(address); kInvalidArgument (nothing to verify: no host).
  virtual Result<std::unique_ptr<Stream>> open_stream(const Address& address,
                                                      std::string_view host) = 0;
  // The same over a stream that was opened elsewhere; sessions are resumed where `peer` is equal.
  virtual Result<std::unique_ptr<Stream>> open_over(std::unique_ptr<Stream> stream,
                                                    std::string_view host,
                                                    std::string_view peer) = 0;
  // The server's end over a stream that was accepted. finish_connect() is the handshake.
  // Requires: kServer; the others, kClient.
  virtual Result<std::unique_ptr<Stream>> accept_over(std::unique_ptr<Stream> stream) = 0;
};

}  // namespace kvferry::net
