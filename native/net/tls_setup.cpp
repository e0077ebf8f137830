#include "net/tls_setup.hpp"

#include <openssl/err.h>

#include <string_view>
#include <utility>

#include "net/tls_failure.hpp"
#include "net/tls_stream.hpp"

namespace kvferry::net {
namespace {

// AES-128 is the quickest where there are instructions for it, and no weaker here.
constexpr const char* kSuites =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

Error cannot(const std::string& action) {
  return Error{Errc::kCertificate, "cannot " + action + ": " + take_tls_error()};
}

// Keys have no password. OpenSSL's own would ask at the terminal.
int give_no_password(char*, int, int, void*) { return 0; }

Outcome set_rules(SSL_CTX* context, const TlsConfig& config) {
  if (config.min_version != "1.2" && config.min_version != "1.3") {
    return Error{Errc::kInvalidArgument, "the least version of TLS is 1.2 or 1.3"};
  }
  SSL_CTX_set_min_proto_version(context,
                                config.min_version == "1.3" ? TLS1_3_VERSION : TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                   (config.ktls ? SSL_OP_ENABLE_KTLS : 0));
  // Without AUTO_RETRY a read may stop between two records that are both here already.
  SSL_CTX_set_mode(context, SSL_MODE_AUTO_RETRY | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // A list of two kinds: the suites of TLS 1.3 have a call of their own.
  std::string suites;
  std::string older;
  std::string_view rest = config.ciphers;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    std::string& list = one.starts_with("TLS_") ? suites : older;
    if (!list.empty()) list += ':';
    list += one;
  }
  const bool sound =
      SSL_CTX_set_ciphersuites(context, suites.empty() ? kSuites : suites.c_str()) == 1 &&
      (older.empty() || SSL_CTX_set_cipher_list(context, older.c_str()) == 1);
  if (!sound) return Error{Errc::kInvalidArgument, "TLS ciphers: " + take_tls_error()};
  return Done{};
}

Outcome trust(SSL_CTX* context, const TlsConfig& config) {
  if (!config.ca_file.empty() && SSL_CTX_load_verify_file(context, config.ca_file.c_str()) != 1) {
    return cannot("use the CA file " + config.ca_file);
  }
  if (config.ca_file.empty() && SSL_CTX_set_default_verify_paths(context) != 1) {
    return cannot("use the certificates that the system trusts");
  }
  return Done{};
}

Outcome identify(SSL_CTX* context, const TlsConfig& config) {
  const std::string& cert = config.cert_file;
  if (cert.empty() && config.key_file.empty()) return Done{};
  if (cert.empty()) return Error{Errc::kInvalidArgument, "a TLS key needs its certificate"};
  const std::string& key = config.key_file.empty() ? cert : config.key_file;
  if (SSL_CTX_use_certificate_chain_file(context, cert.c_str()) != 1) {
    return cannot("use the certificate file " + cert);
  }
  SSL_CTX_set_default_passwd_cb(context, give_no_password);
  const bool loaded = SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) == 1;
  if (!loaded) return cannot("use the key file " + key);
  if (SSL_CTX_check_private_key(context) != 1) {
    return cannot("use the key file " + key + " with " + cert);
  }
  return Done{};
}

Outcome be_client(SSL_CTX* context, const TlsConfig& config) {
  SSL_CTX_set_verify(context, config.verify == TlsVerify::kNone ? SSL_VERIFY_NONE : SSL_VERIFY_PEER,
                     nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_sess_set_new_cb(context, TlsStream::on_new_session);
  return Done{};
}

// What a session was agreed on under is in its ticket, which no other setup can open: so a client
// whose authority is trusted no more cannot come back by resuming.
Outcome be_server(SSL_CTX* context, const TlsConfig& config) {
  if (config.cert_file.empty()) {
    return Error{Errc::kInvalidArgument, "a TLS server needs a certificate and its key"};
  }
  const bool asks = !config.ca_file.empty();
  SSL_CTX_set_verify(
      context, asks ? SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT : SSL_VERIFY_NONE, nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  constexpr std::string_view kName = "kvferry";  // OpenSSL resumes nothing without one
  SSL_CTX_set_session_id_context(context, reinterpret_cast<const unsigned char*>(kName.data()),
                                 kName.size());
  return Done{};
}

}  // namespace

TlsSession TlsSessions::take(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(peer);
  if (found == sessions_.end()) return nullptr;
  std::deque<TlsSession>& sessions = found->second;
  while (!sessions.empty()) {
    SSL_SESSION* newest = sessions.back().get();
    if (SSL_SESSION_is_resumable(newest) == 1) {
      if (SSL_SESSION_get_protocol_version(newest) == TLS1_2_VERSION) {
        SSL_SESSION_up_ref(newest);
        return TlsSession(newest);
      }
      TlsSession taken = std::move(sessions.back());
      sessions.pop_back();
      return taken;
    }
    sessions.pop_back();
  }
  sessions_.erase(found);
  return nullptr;
}

void TlsSessions::keep(const std::string& peer, TlsSession session) {
  const unsigned char* ticket = nullptr;
  std::size_t size = 0;
  SSL_SESSION_get0_ticket(session.get(), &ticket, &size);
  if (size > kTicketBytesMax) return;
  const std::lock_guard lock(mutex_);
  if (sessions_.size() >= kPeersMax && !sessions_.contains(peer)) sessions_.clear();
  std::deque<TlsSession>& sessions = sessions_[peer];
  if (sessions.size() >= kSessionsMax) sessions.pop_front();
  sessions.push_back(std::move(session));
}

void TlsSessions::forget(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  sessions_.erase(peer);
}

Result<std::shared_ptr<TlsSetup>> TlsSetup::load(const TlsConfig& config, TlsRole role) {
  ERR_clear_error();
  auto setup = std::make_shared<TlsSetup>();  // owners: the context, and streams made under it
  setup->context.reset(
      SSL_CTX_new(role == TlsRole::kClient ? TLS_client_method() : TLS_server_method()));
  SSL_CTX* context = setup->context.get();
  if (context == nullptr) return cannot("set up TLS");
  for (const auto step : {set_rules, trust, identify}) {
    if (const Outcome done = step(context, config); !done) return done.error();
  }
  const Outcome done =
      role == TlsRole::kClient ? be_client(context, config) : be_server(context, config);
  if (!done) return done.error();
  return setup;
}

}  // namespace kvferry::net
