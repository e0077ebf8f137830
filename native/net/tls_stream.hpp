#pragma once
// TlsStream: TLS by OpenSSL over another stream; what TlsContext makes.
//
// Sending: OpenSSL takes a record at a time and TlsBio gathers them, so bytes may be encrypted and
// not yet sent when send() returns. The caller must then come again, so the last byte is not
// reported until everything is out. That byte is never read twice: the memory of what is reported,
// and of that byte, is no longer needed. Until it is reported, receive() sends nothing either: else
// the answer could be there before the bytes count as sent.
//
// Receiving: straight into the caller's memory, until that is full or the stream below is empty.
// Bytes that stay behind are less than a record, or the caller asked for less than there was.
//
// TLS in the kernel needs OpenSSL's own socket BIO during the handshake. Afterwards TlsBio takes
// over in each direction that the kernel did not take.

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <string>

#include "net/stream.hpp"
#include "net/tls_bio.hpp"
#include "net/tls_setup.hpp"

namespace kvferry::net {

class TlsStream final : public Stream {
 public:
  struct Target {
    TlsRole role = TlsRole::kClient;  // of ours; a server has none of the next three
    std::string name{};               // host name or numeric address that is asked for and verified
    std::string peer{};               // whose session may be resumed
    TlsVerify verify = TlsVerify::kFull;
    bool ktls = false;
  };

  // Fails with: kSystem (no memory), kInvalidArgument (a name that cannot be one).
  static Result<std::unique_ptr<Stream>> open(std::shared_ptr<TlsSetup> setup,
                                              std::unique_ptr<Stream> below, Target target);
  ~TlsStream() override;
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  [[nodiscard]] int fd() const noexcept override { return below_->fd(); }
  IoResult finish_connect() noexcept override;
  [[nodiscard]] bool awaits_readable() const noexcept override { return awaits_readable_; }
  IoResult receive(std::span<const iovec> pieces) noexcept override;
  IoResult send(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] std::size_t unsent_bytes() const noexcept override;
  void set_receive_low_water(std::size_t bytes) noexcept override;
  void reset() noexcept override;
  [[nodiscard]] std::string failure(const IoResult& result) const override;
  [[nodiscard]] std::optional<TlsFacts> tls_facts() const override;

  // OpenSSL's call when a session may be resumed later.
  static int on_new_session(SSL* ssl, SSL_SESSION* session);

 private:
  TlsStream(std::shared_ptr<TlsSetup> setup, std::unique_ptr<Stream> below, Target target);

  bool prepare();
  bool prepare_client();
  bool take_over() noexcept;
  IoResult stopped(int code) noexcept;
  IoResult end(int error) noexcept;
  IoResult unable_to_send() noexcept;

  const std::shared_ptr<TlsSetup> setup_;  // owners: the context, and streams made under it
  const std::unique_ptr<Stream> below_;
  const Target target_;
  const int process_;  // that opened it; a forked child says nothing on the parent's connection
  TlsBio bio_;
  std::unique_ptr<SSL, TlsFree<SSL_free>> ssl_;

  bool connected_ = false;  // the stream below
  bool agreed_ = false;     // the handshake is done
  bool heard_ = false;      // the peer has sent something since
  bool awaits_readable_ = false;
  bool ktls_send_ = false;
  bool ktls_receive_ = false;
  bool held_back_ = false;  // one byte that was taken was not reported
  std::optional<IoResult> ended_;
  std::string why_;
};

}  // namespace kvferry::net
