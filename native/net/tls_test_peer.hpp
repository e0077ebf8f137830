#pragma once
// What the TLS tests talk to: certificates made in the test, and a server of blocking OpenSSL calls
// in a thread. And a client's driver, which waits as a worker does.
//
// Every wait has a limit (kPatience); a test that runs into it fails.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/thread.hpp"
#include "base/unique_fd.hpp"
#include "net/poller.hpp"
#include "net/tls.hpp"
#include "net/tls_setup.hpp"

namespace kvferry::net::tls_test {

constexpr Nanos kPatience = 20 * kSecond;

// A key with its certificate, and perhaps the one that signed it.
struct Identity {
  std::shared_ptr<EVP_PKEY> key;
  std::shared_ptr<X509> certificate;

  struct Wish {
    std::string name = "kvferry test";
    std::string alternatives{};  // "DNS:localhost,IP:127.0.0.1"; empty: an authority
    long from_s = -3600;
    long until_s = 3600;
  };

  // Signed by `issuer`, or by itself.
  static Identity make(const Wish& wish, const Identity* issuer = nullptr) {
    Identity made{{EVP_EC_gen("P-256"), EVP_PKEY_free}, {X509_new(), X509_free}};
    X509* certificate = made.certificate.get();
    static long serial = 1;
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++);
    X509_gmtime_adj(X509_getm_notBefore(certificate), wish.from_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate), wish.until_s);
    X509_set_pubkey(certificate, made.key.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(wish.name.c_str()), -1, -1,
                               0);
    const Identity& signer = issuer != nullptr ? *issuer : made;
    X509_set_issuer_name(certificate, X509_get_subject_name(signer.certificate.get()));
    const bool authority = wish.alternatives.empty();
    const std::string& names = wish.alternatives;
    X509_EXTENSION* extension =
        authority ? X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE")
                  : X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, names.c_str());
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
    EXPECT_GT(X509_sign(certificate, signer.key.get(), EVP_sha256()), 0);
    return made;
  }

  // Writes PEM files at `base`.crt and `base`.key; the key is encrypted if there is a password.
  void write(const std::string& base, const std::string& password = {}) const {
    std::unique_ptr<BIO, TlsFree<BIO_free_all>> out(BIO_new_file((base + ".crt").c_str(), "w"));
    ASSERT_EQ(PEM_write_bio_X509(out.get(), certificate.get()), 1);
    out.reset(BIO_new_file((base + ".key").c_str(), "w"));
    const EVP_CIPHER* cipher = password.empty() ? nullptr : EVP_aes_128_cbc();
    const auto* text = reinterpret_cast<const unsigned char*>(password.data());
    ASSERT_EQ(PEM_write_bio_PrivateKey(out.get(), key.get(), cipher, text,
                                       static_cast<int>(password.size()), nullptr, nullptr),
              1);
  }
};

// An authority, a server for "localhost" and 127.0.0.1, and their files in a directory of the test.
struct Certificates {
  Identity authority = Identity::make({.name = "test authority"});
  Identity server =
      Identity::make({.alternatives = "DNS:localhost,IP:127.0.0.1,DNS:*.cache.test"}, &authority);
  Identity client = Identity::make({.name = "client", .alternatives = "DNS:client"}, &authority);
  std::string base = unused_name();

  Certificates() {
    authority.write(base + "-ca");
    client.write(base + "-client");
  }
  ~Certificates() {
    for (const char* name : {"-ca", "-client", "-other"}) {
      for (const char* end : {".crt", ".key"}) ::unlink((base + name + end).c_str());
    }
  }
  static std::string unused_name() {
    static std::atomic<int> count = 0;
    return testing::TempDir() + "kvferry-tls-" + std::to_string(::getpid()) + "-" +
           std::to_string(count++);
  }
  [[nodiscard]] TlsConfig config() const { return {.enabled = true, .ca_file = base + "-ca.crt"}; }
};

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
