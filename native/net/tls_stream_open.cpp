// TlsStream, how it begins: the settings of a connection, the handshake.

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "net/tls_failure.hpp"
#include "net/tls_stream.hpp"

namespace kvferry::net {
namespace {

bool is_numeric(const std::string& name) {
  in6_addr scratch;
  return ::inet_pton(AF_INET, name.c_str(), &scratch) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), &scratch) == 1;
}

}  // namespace

TlsStream::TlsStream(std::shared_ptr<TlsSetup> setup, std::unique_ptr<Stream> below, Target target)
    : setup_(std::move(setup)),
      below_(std::move(below)),
      target_(std::move(target)),
      process_(::getpid()),
      bio_(*below_) {}

Result<std::unique_ptr<Stream>> TlsStream::open(std::shared_ptr<TlsSetup> setup,
                                                std::unique_ptr<Stream> below, Target target) {
  ERR_clear_error();
  std::unique_ptr<TlsStream> stream(
      new TlsStream(std::move(setup), std::move(below), std::move(target)));
  if (!stream->prepare()) {
    return Error{Errc::kInvalidArgument,
                 "TLS to \"" + stream->target_.name + "\": " + take_tls_error()};
  }
  return std::unique_ptr<Stream>(std::move(stream));
}

bool TlsStream::prepare() {
  ssl_.reset(SSL_new(setup_->context.get()));
  if (!ssl_) return false;
  SSL* ssl = ssl_.get();
  SSL_set_app_data(ssl, this);
  if (target_.role == TlsRole::kServer) {
    SSL_set_accept_state(ssl);
  } else if (!prepare_client()) {
    return false;
  }
  for (const auto attach : {SSL_set0_rbio, SSL_set0_wbio}) {
    BIO* bio = target_.ktls ? BIO_new_socket(fd(), BIO_NOCLOSE) : bio_.make_bio();
    if (bio == nullptr) return false;
    attach(ssl, bio);
  }
  return true;
}

bool TlsStream::prepare_client() {
  SSL* ssl = ssl_.get();
  SSL_set_connect_state(ssl);
  const std::string& name = target_.name;
  const bool numeric = is_numeric(name);
  if (!name.empty() && !numeric && SSL_set_tlsext_host_name(ssl, name.c_str()) != 1) return false;
  if (target_.verify == TlsVerify::kFull) {
    X509_VERIFY_PARAM* rules = SSL_get0_param(ssl);
    X509_VERIFY_PARAM_set_hostflags(rules, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    const int set = numeric ? X509_VERIFY_PARAM_set1_ip_asc(rules, name.c_str())
                            : X509_VERIFY_PARAM_set1_host(rules, name.data(), name.size());
    if (set != 1) return false;
  }
  if (const TlsSession session = setup_->sessions.take(target_.peer)) {
    SSL_set_session(ssl, session.get());  // fails where it does not fit: then nothing is resumed
  }
  return true;
}

IoResult TlsStream::finish_connect() noexcept {
  if (ended_) return *ended_;
  if (!connected_) {
    const IoResult io = below_->finish_connect();
    if (io.state != IoState::kOk) return io;
    connected_ = true;
  }
  ERR_clear_error();
  bio_.begin_reading();
  if (!agreed_) {
    const int code = SSL_do_handshake(ssl_.get());
    if (code != 1) {
      const IoResult io = stopped(code);
      if (io.state != IoState::kWouldBlock) {
        setup_->sessions.forget(target_.peer);
        return io;
      }
      const bool sent = bio_.flush();
      if (!sent) awaits_readable_ = true;                // what it said last, or how it failed
      if (bio_.pending() > 0) awaits_readable_ = false;  // no answer comes before all is asked
      return io;
    }
    agreed_ = true;
    if (!take_over()) return end(SSL_ERROR_SYSCALL);
  }
  if (!bio_.flush()) return unable_to_send();
  awaits_readable_ = false;
  if (bio_.pending() > 0) return {.state = IoState::kWouldBlock};
  return {};
}

// Nothing is lost by the exchange: OpenSSL read no further than the records that it used.
bool TlsStream::take_over() noexcept {
  SSL* ssl = ssl_.get();
  ktls_send_ = BIO_get_ktls_send(SSL_get_wbio(ssl)) != 0;
  ktls_receive_ = BIO_get_ktls_recv(SSL_get_rbio(ssl)) != 0;
  if (!target_.ktls) return true;
  BIO* in = ktls_receive_ ? nullptr : bio_.make_bio();
  BIO* out = ktls_send_ ? nullptr : bio_.make_bio();
  errno = ENOMEM;
  if ((in == nullptr && !ktls_receive_) || (out == nullptr && !ktls_send_)) {
    BIO_free(in);
    BIO_free(out);
    return false;
  }
  if (in != nullptr) SSL_set0_rbio(ssl, in);
  if (out != nullptr) SSL_set0_wbio(ssl, out);
  return true;
}

int TlsStream::on_new_session(SSL* ssl, SSL_SESSION* session) {
  const auto* stream = static_cast<const TlsStream*>(SSL_get_app_data(ssl));
  stream->setup_->sessions.keep(stream->target_.peer, TlsSession(session));
  return 1;  // the reference is ours now
}

}  // namespace kvferry::net
