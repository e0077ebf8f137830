// TLS handshakes: who is accepted, who is refused, and with which words.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "net/tls.hpp"
#include "net/tls_test_client.hpp"
#include "net/tls_test_peer.hpp"

namespace kvferry::net {
namespace {

using tls_test::Certificates;
using tls_test::Client;
using tls_test::Identity;
using tls_test::Peer;
using tls_test::Talk;

void say_hello(const Talk& talk) {
  talk.write("hello");
  talk.wait_for_end();
}

struct Outcome {
  IoState state;
  std::string text;
};

// Dials, and reads what the server says first: with TLS 1.3 it may refuse us that late.
Outcome dial(const Peer& peer, const TlsConfig& config, std::string_view host = "localhost") {
  auto context = TlsContext::open(config);
  if (!context) return {IoState::kFailed, context.error().context};
  Client client((*context)->open_stream(peer.address(), host));
  const IoResult io = client.connect();
  if (io.state != IoState::kOk) return {io.state, client.why(io)};
  IoResult end;
  const std::string hello = client.receive(5, &end);
  return hello == "hello" ? Outcome{IoState::kOk, hello} : Outcome{end.state, client.why(end)};
}

bool says(const Outcome& outcome, std::string_view words) {
  return outcome.text.find(words) != std::string::npos;
}

class TlsHandshake : public testing::Test {
 protected:
  const Certificates certificates_;
};

TEST_F(TlsHandshake, NamesAndAddressesOfTheCertificateAreAccepted) {
  for (const char* host : {"localhost", "LOCALHOST", "localhost.", "127.0.0.1", "a.cache.test"}) {
    std::string asked = "nothing";
    {
      const Peer peer(certificates_.server, [&](const Talk& talk) {
        const char* name = SSL_get_servername(talk.ssl(), TLSEXT_NAMETYPE_host_name);
        asked = name != nullptr ? name : "";
        say_hello(talk);
      });
      const Outcome outcome = dial(peer, certificates_.config(), host);
      EXPECT_EQ(outcome.state, IoState::kOk) << host << ": " << outcome.text;
    }
    const std::string wish = host;
    EXPECT_EQ(asked, wish == "127.0.0.1"    ? ""
                     : wish == "localhost." ? "localhost"
                                            : wish)
        << "an address is no server name (RFC 6066)";
  }
}

TEST_F(TlsHandshake, OtherNamesAreRefused) {
  for (const char* host : {"example.org", "127.0.0.2", "::1", "a.b.cache.test", "cache.test"}) {
    const Peer peer(certificates_.server, say_hello);
    const Outcome outcome = dial(peer, certificates_.config(), host);
    EXPECT_EQ(outcome.state, IoState::kRefused) << host;
    EXPECT_TRUE(says(outcome, "mismatch")) << outcome.text;
    EXPECT_TRUE(says(outcome, host)) << outcome.text;
  }
}

TEST_F(TlsHandshake, AnotherNameMayBeVerifiedThanTheOneThatIsDialled) {
  TlsConfig config = certificates_.config();
  for (const char* name : {"localhost", "127.0.0.1"}) {
    config.server_name = name;
    const Peer peer(certificates_.server, say_hello);
    EXPECT_EQ(dial(peer, config, "10.0.0.1").state, IoState::kOk) << name;
  }
  config.server_name = "example.org";
  const Peer peer(certificates_.server, say_hello);
  EXPECT_EQ(dial(peer, config, "localhost").state, IoState::kRefused);
}

TEST_F(TlsHandshake, CertificatesThatNobodyShouldTrustAreRefused) {
  const std::string names = "DNS:localhost";
  const Identity stranger = Identity::make({.name = "unknown authority"});
  const struct {
    Identity identity;
    const char* words;
  } cases[] = {
      {Identity::make({.alternatives = names, .from_s = -7200, .until_s = -3600},
                      &certificates_.authority),
       "certificate has expired"},
      {Identity::make({.alternatives = names, .from_s = 3600, .until_s = 7200},
                      &certificates_.authority),
       "certificate is not yet valid"},
      {Identity::make({.alternatives = names}, &stranger), "unable to get local issuer"},
      {Identity::make({.alternatives = names}), "self-signed certificate"},
  };
  for (const auto& one : cases) {
    for (const TlsVerify verify : {TlsVerify::kFull, TlsVerify::kCa, TlsVerify::kNone}) {
      TlsConfig config = certificates_.config();
      config.verify = verify;
      const Peer peer(one.identity, say_hello);
      const Outcome outcome = dial(peer, config);
      if (verify == TlsVerify::kNone) {
        EXPECT_EQ(outcome.state, IoState::kOk) << outcome.text;
      } else {
        EXPECT_EQ(outcome.state, IoState::kRefused) << one.words;
        EXPECT_TRUE(says(outcome, one.words)) << outcome.text;
      }
    }
  }
}

TEST_F(TlsHandshake, TheNameIsNotAskedForWithoutFullVerification) {
  for (const TlsVerify verify : {TlsVerify::kCa, TlsVerify::kNone}) {
    TlsConfig config = certificates_.config();
    config.verify = verify;
    const Peer peer(certificates_.server, say_hello);
    EXPECT_EQ(dial(peer, config, "example.org").state, IoState::kOk);
  }
}

TEST_F(TlsHandshake, AServerThatWantsACertificateGetsOursOrRefusesUs) {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const auto prepare = [&](SSL_CTX* context) {
      SSL_CTX_set_max_proto_version(context, version);
      SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context),
                          certificates_.authority.certificate.get());
    };
    TlsConfig config = certificates_.config();
    {
      const Peer peer(certificates_.server, say_hello, 1, prepare);
      const Outcome outcome = dial(peer, config);
      EXPECT_EQ(outcome.state, IoState::kRefused);
      const char* words = version == TLS1_3_VERSION ? "it wants a client certificate" : "handshake";
      EXPECT_TRUE(says(outcome, words)) << outcome.text;
    }
    config.cert_file = certificates_.base + "-client.crt";
    config.key_file = certificates_.base + "-client.key";
    {
      const Peer peer(certificates_.server, say_hello, 1, prepare);
      EXPECT_EQ(dial(peer, config).state, IoState::kOk);
    }
    Identity::make({.alternatives = "DNS:client"}).write(certificates_.base + "-other");
    config.cert_file = certificates_.base + "-other.crt";
    config.key_file = certificates_.base + "-other.key";
    const Peer peer(certificates_.server, say_hello, 1, prepare);
    const Outcome outcome = dial(peer, config);
    EXPECT_EQ(outcome.state, IoState::kRefused) << "a certificate of nobody";
    EXPECT_TRUE(says(outcome, "the server ended TLS: ")) << outcome.text;
  }
}

TEST_F(TlsHandshake, ARefusalIsHeardAlsoWhenSendingFailsFirst) {
  const auto prepare = [&](SSL_CTX* context) {
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  };
  auto context = TlsContext::open(certificates_.config());
  ASSERT_TRUE(context);
  IoResult io;
  auto peer = std::make_unique<Peer>(certificates_.server, say_hello, 1, prepare);
  Client client((*context)->open_stream(peer->address(), "localhost"));
  ASSERT_EQ(client.connect().state, IoState::kOk) << "TLS 1.3: our side is content";
  peer.reset();  // it has sent its alert and closed
  do {
    io = client.send("PING\r\n");
  } while (io.state == IoState::kOk);
  EXPECT_EQ(io.state, IoState::kRefused);
  EXPECT_NE(client.why(io).find("certificate required"), std::string::npos) << client.why(io);
}

TEST_F(TlsHandshake, VersionsAndCiphersHaveToMeet) {
  const auto only_old = [](SSL_CTX* context) {
    SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
  };
  TlsConfig config = certificates_.config();
  config.min_version = "1.3";
  {
    const Peer peer(certificates_.server, say_hello, 1, only_old);
    const Outcome outcome = dial(peer, config);
    EXPECT_EQ(outcome.state, IoState::kRefused);
    EXPECT_TRUE(says(outcome, "protocol version")) << outcome.text;
  }
  config = certificates_.config();
  config.ciphers = "TLS_AES_256_GCM_SHA384:ECDHE-ECDSA-AES256-GCM-SHA384";
  for (const bool old : {false, true}) {
    std::string used;
    {
      const Peer peer(
          certificates_.server,
          [&](const Talk& talk) {
            used = SSL_get_cipher_name(talk.ssl());
            say_hello(talk);
          },
          1, old ? Peer::Prepare(only_old) : Peer::Prepare());
      EXPECT_EQ(dial(peer, config).state, IoState::kOk);
    }
    EXPECT_EQ(used, old ? "ECDHE-ECDSA-AES256-GCM-SHA384" : "TLS_AES_256_GCM_SHA384");
  }
  const Peer peer(certificates_.server, say_hello, 1, [&](SSL_CTX* context) {
    SSL_CTX_set_ciphersuites(context, "TLS_CHACHA20_POLY1305_SHA256");
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  });
  const Outcome outcome = dial(peer, config);
  EXPECT_EQ(outcome.state, IoState::kRefused);
  EXPECT_TRUE(says(outcome, "handshake failure")) << outcome.text;
}

TEST_F(TlsHandshake, AServerWithoutTlsIsToldApart) {
  for (const char* answer : {"-ERR Protocol error: unauthenticated bulk length\r\n",
                             "HTTP/1.1 400 Bad Request\r\n\r\n"}) {
    const Peer peer([&](int fd) {
      ::send(fd, answer, std::strlen(answer), MSG_NOSIGNAL);
      char bytes[4096];
      while (::recv(fd, bytes, sizeof bytes, 0) > 0) {
      }
    });
    const Outcome outcome = dial(peer, certificates_.config());
    EXPECT_EQ(outcome.state, IoState::kRefused);
    EXPECT_TRUE(says(outcome, "does not speak TLS")) << outcome.text;
  }
}

TEST_F(TlsHandshake, AServerThatGoesAwayMeanwhileMayComeBack) {
  for (const int bytes : {0, 3, 200}) {  // of its first flight
    const Peer peer([&](int fd) {
      char request[4096];
      EXPECT_GT(::recv(fd, request, sizeof request, 0), 0);
      std::string start("\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03", 11);
      start.resize(200, 'x');
      ::send(fd, start.data(), static_cast<std::size_t>(bytes), MSG_NOSIGNAL);
    });
    const Outcome outcome = dial(peer, certificates_.config());
    EXPECT_EQ(outcome.state, IoState::kClosed) << outcome.text;
    EXPECT_TRUE(says(outcome, "during the TLS handshake")) << outcome.text;
  }
}

TEST_F(TlsHandshake, ASecondDialResumesTheSessionOfThatPeerAlone) {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const auto prepare = [&](SSL_CTX* context) { SSL_CTX_set_max_proto_version(context, version); };
    const Peer peer(certificates_.server, say_hello, 3, prepare);
    auto context = TlsContext::open(certificates_.config());
    ASSERT_TRUE(context);
    const auto resumes = [&](const char* host) {
      Client client((*context)->open_stream(peer.address(), host));
      EXPECT_EQ(client.connect().state, IoState::kOk);
      EXPECT_EQ(client.receive(5), "hello");
      return client.stream().tls_facts()->resumed;
    };
    EXPECT_FALSE(resumes("localhost"));
    EXPECT_TRUE(resumes("localhost"));
    EXPECT_FALSE(resumes("127.0.0.1")) << "the session was verified for another name";
  }
}

}  // namespace
}  // namespace kvferry::net
