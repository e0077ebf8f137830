#include "net/tls_failure.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace kvferry::net {
namespace {

// Alerts that say: not with this certificate, version, cipher or name.
constexpr std::array kRefusals{SSL_AD_HANDSHAKE_FAILURE,
                               SSL_AD_BAD_CERTIFICATE,
                               SSL_AD_UNSUPPORTED_CERTIFICATE,
                               SSL_AD_CERTIFICATE_REVOKED,
                               SSL_AD_CERTIFICATE_EXPIRED,
                               SSL_AD_CERTIFICATE_UNKNOWN,
                               SSL_AD_UNKNOWN_CA,
                               SSL_AD_ACCESS_DENIED,
                               SSL_AD_PROTOCOL_VERSION,
                               SSL_AD_INSUFFICIENT_SECURITY,
                               SSL_AD_UNRECOGNIZED_NAME,
                               SSL_AD_CERTIFICATE_REQUIRED,
                               SSL_AD_NO_APPLICATION_PROTOCOL,
                               SSL_AD_UNKNOWN_PSK_IDENTITY};

// What our own side finds wrong with the other, again at every try.
constexpr std::array kMisfits{SSL_R_CERTIFICATE_VERIFY_FAILED,
                              SSL_R_UNSUPPORTED_PROTOCOL,
                              SSL_R_WRONG_SSL_VERSION,
                              SSL_R_NO_CIPHERS_AVAILABLE,
                              SSL_R_NO_PROTOCOLS_AVAILABLE,
                              SSL_R_WRONG_CIPHER_RETURNED,
                              SSL_R_EE_KEY_TOO_SMALL,
                              SSL_R_CA_KEY_TOO_SMALL,
                              SSL_R_CA_MD_TOO_WEAK,
                              SSL_R_DH_KEY_TOO_SMALL,
                              SSL_R_UNSAFE_LEGACY_RENEGOTIATION_DISABLED};

// A first record that is none.
constexpr std::array kForeign{SSL_R_WRONG_VERSION_NUMBER, SSL_R_HTTP_REQUEST,
                              SSL_R_HTTPS_PROXY_REQUEST};

constexpr bool contains(const auto& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

std::string text_of(unsigned long code) {
  if (ERR_SYSTEM_ERROR(code)) return std::strerror(ERR_GET_REASON(code));
  const char* text = ERR_reason_error_string(code);
  return text != nullptr ? text : "OpenSSL error " + std::to_string(code);
}

}  // namespace

std::string take_tls_error() {
  const unsigned long code = ERR_peek_error();
  ERR_clear_error();
  return code == 0 ? "OpenSSL gives no reason" : text_of(code);
}

TlsFailure take_tls_failure(const SSL* ssl, std::string_view name) {
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  const std::string text = take_tls_error();
  const std::string other = SSL_is_server(ssl) == 1 ? "the client" : "the server";
  const long verified = SSL_get_verify_result(ssl);
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED && verified != X509_V_OK) {
    std::string why = other + "'s certificate is refused: ";
    why += X509_verify_cert_error_string(verified);
    if (verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH) {
      why.append(", it is not for ").append(name);
    }
    return {IoState::kRefused, std::move(why)};
  }
  if (contains(kForeign, reason)) {
    return {IoState::kRefused, other + " does not speak TLS on this port (" + text + ")"};
  }
  if (reason > SSL_AD_REASON_OFFSET) {
    const int alert = reason - SSL_AD_REASON_OFFSET;
    const IoState state = contains(kRefusals, alert) ? IoState::kRefused : IoState::kFailed;
    std::string why = other + " ended TLS: " + text;
    if (alert == SSL_AD_CERTIFICATE_REQUIRED) why += ", it wants a client certificate";
    return {state, std::move(why)};
  }
  return {contains(kMisfits, reason) ? IoState::kRefused : IoState::kFailed, "TLS: " + text};
}

}  // namespace kvferry::net
