#pragma once
// TlsChannel: SSL_read() and SSL_write() over a blocking socket, as any user of OpenSSL writes it.

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <string>

#include "bench/channel.hpp"

namespace kvferry::bench {

// One for the process. The suites are in the order in which the client offers them.
inline SSL_CTX* tls_context(const Options& o) {
  static SSL_CTX* const made = [&] {
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    const auto need = [](int done, const std::string& what) {
      if (done != 1) die(what + ": " + ERR_reason_error_string(ERR_peek_error()));
    };
    need(SSL_CTX_set_ciphersuites(context, o.text("--tls-suites").c_str()), "--tls-suites");
    if (const std::string& ca = o.text("--tls-ca"); !ca.empty()) {
      need(SSL_CTX_load_verify_file(context, ca.c_str()), "--tls-ca");
      SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    }
    if (const std::string& cert = o.text("--tls-cert"); !cert.empty()) {
      const std::string& key = o.text("--tls-key");
      need(SSL_CTX_use_certificate_chain_file(context, cert.c_str()), "--tls-cert");
      need(SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM), "--tls-key");
    }
    if (o.has("--tls-read-ahead")) SSL_CTX_set_read_ahead(context, 1);
    return context;
  }();
  return made;
}

class TlsChannel final : public Channel {
 public:
  TlsChannel(UniqueFd fd, SSL_CTX* context) : fd_(std::move(fd)), ssl_(SSL_new(context)) {
    SSL_set_fd(ssl_, fd_.get());
    if (SSL_connect(ssl_) != 1) fail("TLS handshake");
  }
  ~TlsChannel() override { SSL_free(ssl_); }
  TlsChannel(const TlsChannel&) = delete;
  TlsChannel& operator=(const TlsChannel&) = delete;

  std::size_t receive(char* data, std::size_t size) override {
    std::size_t count = 0;
    if (SSL_read_ex(ssl_, data, size, &count) != 1) fail("SSL_read");
    return count;
  }
  std::size_t receive_rest(char* data, std::size_t size) override {
    return SSL_pending(ssl_) > 0 ? receive(data, size) : 0;
  }
  std::size_t send(const char* data, std::size_t size) override {
    std::size_t count = 0;
    if (SSL_write_ex(ssl_, data, size, &count) != 1) fail("SSL_write");
    return count;
  }
  [[nodiscard]] std::string tls() const override {
    return std::string(SSL_get_version(ssl_)) + " " + SSL_get_cipher_name(ssl_);
  }

 private:
  [[noreturn]] static void fail(const std::string& action) {
    const char* text = ERR_reason_error_string(ERR_peek_error());
    die(action + ": " + (text != nullptr ? text : std::strerror(errno)));
  }

  UniqueFd fd_;
  SSL* ssl_;
};

}  // namespace kvferry::bench
