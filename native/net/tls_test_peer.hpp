#pragma once
// What the TLS tests talk to: a server of blocking OpenSSL calls, a thread for each connection.
//
// Every wait has a limit (kPatience); a test that runs into it fails.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/thread.hpp"
#include "base/unique_fd.hpp"
#include "net/address.hpp"
#include "net/tls_setup.hpp"
#include "net/tls_test_certificates.hpp"

namespace kvferry::net::tls_test {

constexpr Nanos kPatience = 20 * kSecond;

// One side of a connection that blocks, for scripts: everything or a failure.
class Talk {
 public:
  explicit Talk(SSL* ssl) : ssl_(ssl) {}
  [[nodiscard]] SSL* ssl() const { return ssl_; }
  [[nodiscard]] std::string read(std::size_t size) const {
    std::string text(size, '\0');
    std::size_t got = 0;
    for (std::size_t count = 0; got < size; got += count) {
      if (SSL_read_ex(ssl_, text.data() + got, size - got, &count) != 1) break;
    }
    text.resize(got);
    return text;
  }
  void wait_for_end() const { EXPECT_EQ(read(1), ""); }
  bool write(std::string_view text) const {
    std::size_t count = 0;
    return SSL_write_ex(ssl_, text.data(), text.size(), &count) == 1 && count == text.size();
  }

 private:
  SSL* ssl_;
};

// Accepts `connections` one after the other; `script` runs on each that completes its handshake,
// or with `raw` on the bare socket.
class Peer {
 public:
  using Script = std::function<void(const Talk&)>;
  using Prepare = std::function<void(SSL_CTX*)>;
  using Raw = std::function<void(int)>;

  Peer(const Identity& identity, Script script, int connections = 1, const Prepare& prepare = {})
      : context_(SSL_CTX_new(TLS_server_method())), script_(std::move(script)) {
    SSL_CTX_use_certificate(context_.get(), identity.certificate.get());
    SSL_CTX_use_PrivateKey(context_.get(), identity.key.get());
    SSL_CTX_set_session_id_context(context_.get(), reinterpret_cast<const unsigned char*>("t"), 1);
    SSL_CTX_set_mode(context_.get(), SSL_MODE_AUTO_RETRY);
    if (prepare) prepare(context_.get());
    start([this](int fd) { serve(fd); }, connections);
  }
  explicit Peer(Raw raw, int connections = 1) { start(std::move(raw), connections); }
  ~Peer() {
    ::shutdown(listener_.get(), SHUT_RDWR);  // ends a wait for clients that did not come
    thread_.join();
  }

  [[nodiscard]] Address address() const {
    return resolve({.host = "127.0.0.1", .port = port_, .unix_path = {}})->front();
  }

 private:
  void start(Raw raw, int connections) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof name;
    auto* raw_name = reinterpret_cast<sockaddr*>(&name);
    EXPECT_EQ(::bind(listener_.get(), raw_name, length), 0);
    EXPECT_EQ(::listen(listener_.get(), 64), 0);
    EXPECT_EQ(::getsockname(listener_.get(), raw_name, &length), 0);
    port_ = ntohs(name.sin_port);
    thread_ = Thread("peer", [this, raw = std::move(raw), connections] {
      std::vector<Thread> talks;
      for (int index = 0; index < connections; ++index) {
        const int fd = ::accept(listener_.get(), nullptr, nullptr);
        if (fd < 0) break;
        talks.emplace_back("talk", [fd, &raw] {
          const UniqueFd owned(fd);
          const timeval limit{.tv_sec = kPatience / kSecond, .tv_usec = 0};
          ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
          ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
          raw(fd);
        });
      }
      for (Thread& talk : talks) talk.join();
    });
  }
  void serve(int fd) {
    const std::unique_ptr<SSL, TlsFree<SSL_free>> ssl(SSL_new(context_.get()));
    SSL_set_fd(ssl.get(), fd);
    if (SSL_accept(ssl.get()) == 1) script_(Talk(ssl.get()));
    ERR_clear_error();
  }

  std::unique_ptr<SSL_CTX, TlsFree<SSL_CTX_free>> context_;
  Script script_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  Thread thread_;
};

}  // namespace kvferry::net::tls_test
