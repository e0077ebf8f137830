#include "net/tls_stream.hpp"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "net/tls_failure.hpp"

namespace kvferry::net {
namespace {

// What may wait inside OpenSSL for the rest of its record.
constexpr std::size_t kRecordBytesMax = 17 * kKiB;

bool is_numeric(const std::string& name) {
  in6_addr scratch;
  return ::inet_pton(AF_INET, name.c_str(), &scratch) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), &scratch) == 1;
}

}  // namespace

// --- Opening ---

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

// --- Bytes ---

TlsStream::~TlsStream() {
  // Best effort: tells the server that nothing was cut off. Behind half a record it would be noise.
  if (!agreed_ || ended_ || ktls_send_ || bio_.pending() > 0 || process_ != ::getpid()) return;
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  bio_.flush();
  ERR_clear_error();
}

IoResult TlsStream::receive(std::span<const iovec> pieces) noexcept {
  if (ended_) return *ended_;
  ERR_clear_error();
  bio_.begin_reading();
  std::size_t total = 0;
  IoResult last;
  for (const iovec& piece : pieces) {
    auto* at = static_cast<std::byte*>(piece.iov_base);
    std::size_t left = piece.iov_len;
    while (left > 0) {
      std::size_t count = 0;
      bio_.begin_record();
      const int code = SSL_read_ex(ssl_.get(), at, left, &count);
      if (code != 1) {
        last = stopped(code);
        break;
      }
      at += count;
      left -= count;
      total += count;
    }
    if (left > 0) break;
  }
  // An answer of the protocol, such as new keys. What does not go out now does with the next call;
  // behind a byte that send() has not reported, with the next send().
  if (!ended_ && !held_back_) bio_.flush();
  if (total == 0) return last;
  heard_ = true;
  // The end was read together with these bytes, so the socket would stay silent about it.
  if (ended_) ::shutdown(fd(), SHUT_RD);
  return {.bytes = total};
}

IoResult TlsStream::send(std::span<const iovec> pieces) noexcept {
  if (ended_) return *ended_;
  if (ktls_send_) return below_->send(pieces);
  ERR_clear_error();
  if (!bio_.flush()) return unable_to_send();
  if (bio_.pending() > 0) return {.state = IoState::kWouldBlock};
  bio_.hold(false);
  std::size_t skip = std::exchange(held_back_, false) ? 1 : 0;
  std::size_t taken = 0;
  for (const iovec& piece : pieces) {
    const std::size_t known = std::min(skip, piece.iov_len);
    const auto* at = static_cast<const std::byte*>(piece.iov_base) + known;
    std::size_t left = piece.iov_len - known;
    skip -= known;
    taken += known;
    while (left > 0 && !bio_.blocked()) {
      std::size_t count = 0;
      const int code = SSL_write_ex(ssl_.get(), at, left, &count);
      if (code != 1) {
        const IoResult io = stopped(code);
        if (io.state != IoState::kWouldBlock) return ended_ ? unable_to_send() : io;
        break;
      }
      at += count;
      left -= count;
      taken += count;
    }
    if (left > 0) break;
  }
  if (!bio_.flush()) return unable_to_send();
  held_back_ = bio_.pending() > 0 && taken > 0;
  bio_.hold(held_back_);
  if (held_back_) --taken;
  if (taken == 0) return {.state = IoState::kWouldBlock};
  return {.bytes = taken};
}

std::size_t TlsStream::unsent_bytes() const noexcept {
  return below_->unsent_bytes() + bio_.pending();
}

void TlsStream::set_receive_low_water(std::size_t bytes) noexcept {
  below_->set_receive_low_water(bytes > kRecordBytesMax ? bytes - kRecordBytesMax : 1);
}

void TlsStream::reset() noexcept {
  ended_ = IoResult{.state = IoState::kFailed, .sys_errno = ECONNRESET};  // without a goodbye
  below_->reset();
}

std::string TlsStream::failure(const IoResult& result) const {
  return why_.empty() ? reason(result) : why_;
}

std::optional<TlsFacts> TlsStream::tls_facts() const {
  return TlsFacts{.version = SSL_get_version(ssl_.get()),
                  .cipher = SSL_get_cipher_name(ssl_.get()),
                  .resumed = SSL_session_reused(ssl_.get()) == 1,
                  .ktls_send = ktls_send_,
                  .ktls_receive = ktls_receive_};
}

// --- Ends ---

IoResult TlsStream::stopped(int code) noexcept {
  const int sys_errno = errno;
  const int error = SSL_get_error(ssl_.get(), code);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    awaits_readable_ = error == SSL_ERROR_WANT_READ;
    return {.state = IoState::kWouldBlock};
  }
  errno = sys_errno;
  return end(error);
}

IoResult TlsStream::end(int error) noexcept {
  const int sys_errno = errno;
  const bool cut = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
  if (error == SSL_ERROR_SSL && !cut) {
    TlsFailure found = take_tls_failure(ssl_.get(), target_.name);
    // What was accepted before is not refused for good: a certificate may have expired meanwhile.
    if (heard_) found.state = IoState::kFailed;
    ended_ = IoResult{.state = found.state, .sys_errno = EPROTO};
    why_ = std::move(found.text);
    return *ended_;
  }
  ERR_clear_error();
  if (bio_.receive_failure().state != IoState::kOk) {
    ended_ = bio_.receive_failure();
  } else if (bio_.send_failure().state != IoState::kOk) {
    ended_ = bio_.send_failure();
  } else if (error == SSL_ERROR_ZERO_RETURN || cut || sys_errno == 0) {
    ended_ = IoResult{.state = IoState::kClosed};
  } else {
    ended_ = IoResult{.state = IoState::kFailed, .sys_errno = sys_errno};
  }
  why_ = reason(*ended_);
  if (!agreed_) why_ += " during the TLS handshake";
  return *ended_;
}

// A server that refuses us says so and closes; what we send meanwhile fails first.
IoResult TlsStream::unable_to_send() noexcept {
  const IoResult failed = ended_ ? *ended_ : bio_.send_failure();
  if (agreed_ && !heard_) {
    std::byte byte;
    std::size_t count = 0;
    ERR_clear_error();
    bio_.begin_reading();
    const int code = SSL_read_ex(ssl_.get(), &byte, 1, &count);
    if (code != 1 && SSL_get_error(ssl_.get(), code) == SSL_ERROR_SSL) return end(SSL_ERROR_SSL);
    ERR_clear_error();
  }
  ended_ = failed;
  if (why_.empty()) why_ = reason(failed);
  return *ended_;
}

}  // namespace kvferry::net
