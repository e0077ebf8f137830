#include "redis/server_error.hpp"

#include <algorithm>
#include <array>

namespace kvferry::redis {
namespace {

template <std::size_t N>
bool is_any(std::string_view word, const std::array<std::string_view, N>& words) noexcept {
  return std::ranges::find(words, word) != words.end();
}

constexpr std::array<std::string_view, 4> kBusyWords{"LOADING", "BUSY", "MASTERDOWN",
                                                     "CLUSTERDOWN"};
constexpr std::array<std::string_view, 3> kRedirectWords{"MOVED", "ASK", "TRYAGAIN"};
constexpr std::array<std::string_view, 3> kReconnectWords{"READONLY", "NOAUTH", "REDIRECT"};
constexpr std::array<std::string_view, 2> kCredentialWords{"WRONGPASS", "NOPERM"};

constexpr std::array<std::string_view, 4> kGreetingEnds{"WRONGPASS", "ERR invalid password",
                                                        "ERR max number of clients", "DENIED"};

}  // namespace

ServerErrorKind classify(std::string_view text) noexcept {
  const std::string_view word = text.substr(0, text.find(' '));
  if (is_any(word, kBusyWords)) return ServerErrorKind::kBusy;
  if (is_any(word, kRedirectWords)) return ServerErrorKind::kRedirect;
  if (is_any(word, kReconnectWords)) return ServerErrorKind::kReconnect;
  if (is_any(word, kCredentialWords)) return ServerErrorKind::kCredentials;
  if (word == "NOPROTO" || text.starts_with("ERR unknown command") ||
      text.starts_with("ERR wrong number of arguments")) {
    return ServerErrorKind::kUnknown;
  }
  if (text.starts_with("ERR AUTH") || text.starts_with("ERR invalid password") ||
      text.starts_with("ERR Client sent AUTH")) {
    return ServerErrorKind::kCredentials;
  }
  return ServerErrorKind::kCommand;
}

bool ends_greeting(std::string_view text) noexcept {
  return classify(text) == ServerErrorKind::kBusy ||
         std::ranges::any_of(kGreetingEnds,
                             [text](std::string_view end) { return text.starts_with(end); });
}

Errc error_code(std::string_view text) noexcept {
  const bool refused =
      classify(text) == ServerErrorKind::kCredentials || text.starts_with("NOAUTH");
  return refused ? Errc::kAuth : Errc::kServer;
}

std::string printable(std::string_view text) {
  std::string out(text.substr(0, kErrorTextMax));
  std::ranges::replace_if(out, [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return out;
}

}  // namespace kvferry::redis
