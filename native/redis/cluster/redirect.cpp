#include "redis/cluster/redirect.hpp"

#include "redis/cluster/slot_map.hpp"
#include "redis/cluster/topology_endpoint.hpp"

namespace kvferry::redis {
namespace {

// Cuts the front of `text` off at `separator` and returns it; all of it when there is none.
std::string_view take_word(std::string_view& text, char separator) noexcept {
  const std::size_t at = text.find(separator);
  const std::string_view word = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return word;
}

}  // namespace

std::optional<Redirect> parse_redirect(std::string_view text, std::string_view asked_host) {
  const std::string_view word = take_word(text, ' ');
  if (word != "MOVED" && word != "ASK") return std::nullopt;
  const auto slot = parse_number<std::uint16_t>(take_word(text, ' '));
  if (!slot || *slot >= kSlotCount) return std::nullopt;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto port = parse_number<std::uint16_t>(text.substr(colon + 1));
  if (!port || *port == 0) return std::nullopt;
  Redirect redirect{.kind = word == "ASK" ? RedirectKind::kAsk : RedirectKind::kMoved,
                    .slot = *slot,
                    .endpoint = {}};
  const std::string_view host = text.substr(0, colon);
  if (host == "?") {
    redirect.endpoint.port = *port;
    return redirect;
  }
  auto endpoint = make_endpoint(host.empty() ? asked_host : host, *port);
  if (!endpoint) return std::nullopt;
  redirect.endpoint = *std::move(endpoint);
  return redirect;
}

}  // namespace kvferry::redis
