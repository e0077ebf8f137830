// TlsContext: what it loads, what it refuses, and files that change.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

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

class TlsFiles : public testing::Test {
 protected:
  // Why the context cannot be opened.
  static Error refusal(const TlsConfig& config) {
    const auto context = TlsContext::open(config);
    EXPECT_FALSE(context);
    return context ? Error{Errc::kSystem, "it opened"} : context.error();
  }
  static bool says(const Error& error, std::string_view words) {
    return error.context.find(words) != std::string::npos;
  }
  // Replaces a file as administrators do: by another one of that name.
  static void write_file(const std::string& path, std::string_view text) {
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
  }

  const Certificates certificates_;
  const std::string base_ = certificates_.base;
};

TEST_F(TlsFiles, FilesThatAreOfNoUseAreNamedWithTheReason) {
  TlsConfig config = certificates_.config();
  config.ca_file = base_ + "-none.crt";
  Error error = refusal(config);
  EXPECT_EQ(error.code, Errc::kCertificate);
  EXPECT_TRUE(says(error, config.ca_file)) << error.context;
  EXPECT_TRUE(says(error, "No such file")) << error.context;

  config = certificates_.config();
  write_file(base_ + "-other.crt", "no certificate\n");
  config.ca_file = base_ + "-other.crt";
  error = refusal(config);
  EXPECT_EQ(error.code, Errc::kCertificate);
  EXPECT_TRUE(says(error, config.ca_file)) << error.context;

  config = certificates_.config();
  config.cert_file = base_ + "-client.crt";
  config.key_file = base_ + "-ca.key";
  error = refusal(config);
  EXPECT_EQ(error.code, Errc::kCertificate);
  EXPECT_TRUE(says(error, "mismatch")) << error.context;
}

TEST_F(TlsFiles, SettingsThatCannotBeMeantAreTheCallersMistake) {
  TlsConfig config = certificates_.config();
  config.min_version = "1.1";
  EXPECT_EQ(refusal(config).code, Errc::kInvalidArgument);
  config = certificates_.config();
  for (const char* ciphers : {"NO-SUCH-CIPHER", "TLS_NO_SUCH_SUITE"}) {
    config.ciphers = ciphers;
    EXPECT_EQ(refusal(config).code, Errc::kInvalidArgument) << ciphers;
  }
  config = certificates_.config();
  config.key_file = base_ + "-client.key";
  EXPECT_EQ(refusal(config).code, Errc::kInvalidArgument);
}

TEST_F(TlsFiles, AKeyWithAPasswordIsRefusedAndNobodyIsAskedForIt) {
  certificates_.client.write(base_ + "-other", "open sesame");
  TlsConfig config = certificates_.config();
  config.cert_file = base_ + "-other.crt";
  config.key_file = base_ + "-other.key";
  const Error error = refusal(config);
  EXPECT_EQ(error.code, Errc::kCertificate);
  EXPECT_TRUE(says(error, config.key_file)) << error.context;
}

TEST_F(TlsFiles, ChangedFilesAreUsedForTheNextDialAndBrokenOnesAreReportedOnce) {
  const Identity other = Identity::make({.name = "next authority"});
  const Identity server = Identity::make({.alternatives = "DNS:localhost"}, &other);
  const auto wait = [](const Talk& talk) { talk.wait_for_end(); };
  const Peer old_peer(certificates_.server, wait, 4);
  const Peer new_peer(server, wait, 4);
  std::vector<std::pair<LogLevel, std::string>> notes;
  auto context = TlsContext::open(
      certificates_.config(),
      [&](LogLevel level, const std::string& text) { notes.emplace_back(level, text); });
  ASSERT_TRUE(context);
  const auto accepts = [&](const Peer& peer) {
    Client client((*context)->open_stream(peer.address(), "localhost"));
    return client.connect().state == IoState::kOk;
  };
  EXPECT_TRUE(accepts(old_peer));
  EXPECT_FALSE(accepts(new_peer));
  EXPECT_TRUE(notes.empty());

  write_file(base_ + "-ca.crt", "-----BEGIN CERTIFICATE-----\nhalf of one");
  EXPECT_TRUE(accepts(old_peer)) << "the earlier file stays in use";
  EXPECT_FALSE(accepts(new_peer));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].first, LogLevel::kWarning);
  EXPECT_NE(notes[0].second.find(base_ + "-ca.crt"), std::string::npos) << notes[0].second;

  std::filesystem::remove(base_ + "-ca.crt");
  EXPECT_TRUE(accepts(old_peer));
  EXPECT_EQ(notes.size(), 2u) << "another change, another report";

  other.write(base_ + "-other");
  std::filesystem::rename(base_ + "-other.crt", base_ + "-ca.crt");
  EXPECT_TRUE(accepts(new_peer));
  EXPECT_FALSE(accepts(old_peer)) << "nor by a session that was agreed on before";
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_EQ(notes[2].first, LogLevel::kInfo);
}

TEST_F(TlsFiles, WithoutANameThereIsNothingToVerify) {
  auto context = TlsContext::open(certificates_.config());
  ASSERT_TRUE(context);
  const Peer peer([](int) {}, 2);
  const auto opened = (*context)->open_stream(peer.address(), "");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Errc::kInvalidArgument);
}

TEST(TlsHost, SaysWhatItOffers) {
  const KtlsOffer offer = probe_ktls();
  EXPECT_EQ(offer.kernel, probe_ktls().kernel);
}

}  // namespace
}  // namespace kvferry::net
