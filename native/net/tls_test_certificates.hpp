#pragma once
// Certificates for the TLS tests, made when they run: none lies in the tree, none outlives a test.

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "net/tls.hpp"
#include "net/tls_setup.hpp"

namespace kvferry::net::tls_test {

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

}  // namespace kvferry::net::tls_test
