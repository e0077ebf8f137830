#pragma once
// Channel: a blocking connection to the server that the options name, in one of three ways.
//
//   socket    recv() and send(), nothing else
//   TLS       SSL_read() and SSL_write() over a blocking socket, as any user of OpenSSL writes it
//   --stream  the client's own streams (net/stream.hpp, net/tls.hpp) with poll(): what they cost
//             without the client's protocol
//
// Whatever makes no progress for 30 s, and every other failure, ends the process.

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <memory>
#include <string>
#include <string_view>

#include "bench/blocking_socket.hpp"
#include "net/stream.hpp"
#include "net/tls.hpp"

namespace kvferry::bench {

class Channel {
 public:
  virtual ~Channel() = default;
  // Each moves at least one byte and returns how many.
  virtual std::size_t receive(char* data, std::size_t size) = 0;
  virtual std::size_t send(const char* data, std::size_t size) = 0;
  // What more is there already; perhaps nothing.
  virtual std::size_t receive_rest(char*, std::size_t) { return 0; }
  // Version and cipher; empty without TLS.
  [[nodiscard]] virtual std::string tls() const { return {}; }

  void send_all(std::string_view text) {
    while (!text.empty()) text.remove_prefix(send(text.data(), text.size()));
  }

  // Receives exactly `size` bytes that start with `head`; another start is reported at once,
  // because an error reply would otherwise be waited on for ever.
  void receive_reply(char* data, std::size_t size, std::string_view head) {
    std::size_t got = 0;
    while (got < size) {
      const bool first = got == 0;
      got += receive(data + got, size - got);
      if ((first || got == size) &&
          std::memcmp(data, head.data(), std::min(got, head.size())) != 0) {
        std::string text(data, std::min<std::size_t>(got, 60));
        char more[100];  // the rest of an error, which is longer than the reply that was wanted
        text.append(more, receive_rest(more, sizeof more));
        die("unexpected reply: " + text);
      }
    }
    if (data[size - 2] != '\r' || data[size - 1] != '\n') die("a reply does not end as it should");
  }
};

class SocketChannel final : public Channel {
 public:
  SocketChannel(UniqueFd fd, int flags) : fd_(std::move(fd)), flags_(flags) {}

  std::size_t receive(char* data, std::size_t size) override {
    ssize_t count = 0;
    do count = ::recv(fd_.get(), data, size, flags_);
    while (count < 0 && errno == EINTR);
    if (count == 0) die("the server closed the connection");
    if (count < 0) die_errno("recv");
    return static_cast<std::size_t>(count);
  }
  std::size_t receive_rest(char* data, std::size_t size) override {
    const ssize_t count = ::recv(fd_.get(), data, size, MSG_DONTWAIT);
    return count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  std::size_t send(const char* data, std::size_t size) override {
    ssize_t count = 0;
    do count = ::send(fd_.get(), data, size, MSG_NOSIGNAL);
    while (count < 0 && errno == EINTR);
    if (count <= 0) die_errno("send");
    return static_cast<std::size_t>(count);
  }

 private:
  UniqueFd fd_;
  int flags_;
};

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

class StreamChannel final : public Channel {
 public:
  explicit StreamChannel(Result<std::unique_ptr<net::Stream>> opened) {
    if (!opened) die(opened.error().context);
    stream_ = std::move(*opened);
    bool readable = false;
    do {
      wait(readable ? POLLIN : POLLOUT);
      last_ = stream_->finish_connect();
      readable = stream_->awaits_readable();
    } while (blocked());
  }

  std::size_t receive(char* data, std::size_t size) override {
    const iovec piece{data, size};
    for (;;) {
      last_ = stream_->receive({&piece, 1});
      if (!blocked()) return last_.bytes;
      // As the client does: few wake-ups inside a large value.
      stream_->set_receive_low_water(std::clamp<std::size_t>(size, 1, 512 << 10));
      wait(POLLIN);
    }
  }
  std::size_t send(const char* data, std::size_t size) override {
    const iovec piece{const_cast<char*>(data), size};
    for (;;) {
      last_ = stream_->send({&piece, 1});
      if (!blocked()) return last_.bytes;
      wait(POLLOUT);
    }
  }
  [[nodiscard]] std::string tls() const override {
    const auto facts = stream_->tls_facts();
    return facts ? facts->version + " " + facts->cipher : std::string();
  }

 private:
  bool blocked() {
    if (last_.state == net::IoState::kWouldBlock) return true;
    if (last_.state != net::IoState::kOk) die(stream_->failure(last_));
    return false;
  }
  void wait(short events) {
    pollfd one{.fd = stream_->fd(), .events = events, .revents = 0};
    if (::poll(&one, 1, 30'000) == 0) die("no progress for 30 s");
  }

  std::unique_ptr<net::Stream> stream_;
  net::IoResult last_;
};

// What the options --tls-* say, for --stream. One for the process.
inline net::TlsContext& stream_context(const Options& o) {
  static const auto made = [&] {
    net::TlsConfig config{.enabled = true, .ca_file = o.text("--tls-ca")};
    config.cert_file = o.text("--tls-cert");
    config.key_file = o.text("--tls-key");
    config.ciphers = o.text("--tls-suites");
    config.verify = config.ca_file.empty() ? net::TlsVerify::kNone : net::TlsVerify::kCa;
    auto context = net::TlsContext::open(config);
    if (!context) die(context.error().context);
    return std::move(*context);
  }();
  return *made;
}

// AUTH with KVFERRY_RESP_PASSWORD (and KVFERRY_RESP_USERNAME), where they are set.
inline void authenticate(Channel& channel) {
  const char* password = std::getenv("KVFERRY_RESP_PASSWORD");
  if (password == nullptr || *password == '\0') return;
  const char* user = std::getenv("KVFERRY_RESP_USERNAME");
  std::string command = user != nullptr ? "*3\r\n$4\r\nAUTH\r\n" : "*2\r\n$4\r\nAUTH\r\n";
  for (const char* text : {user, password}) {
    if (text == nullptr) continue;
    command.append("$").append(std::to_string(std::strlen(text)));
    command.append("\r\n").append(text).append("\r\n");
  }
  channel.send_all(command);
  char reply[5];
  channel.receive_reply(reply, sizeof reply, "+OK\r\n");
}

// Connects to `where` as the options say, and authenticates.
inline std::unique_ptr<Channel> open_channel(const Options& o, const net::Endpoint& where) {
  std::unique_ptr<Channel> channel;
  const bool tls = o.has("--tls");
  if (o.has("--stream")) {
    const auto addresses = net::resolve(where);
    if (!addresses) die(addresses.error().context);
    channel = std::make_unique<StreamChannel>(
        tls ? stream_context(o).open_stream(addresses->front(), where.host)
            : net::open_stream(addresses->front()));
  } else if (tls) {
    channel = std::make_unique<TlsChannel>(dial(where), tls_context(o));
  } else {
    channel = std::make_unique<SocketChannel>(dial(where), o.has("--waitall") ? MSG_WAITALL : 0);
  }
  authenticate(*channel);
  return channel;
}

}  // namespace kvferry::bench
