#pragma once
// Redirect: what a cluster's error line says about where a key is served.
//
// "MOVED 3999 10.0.0.7:6381": that node serves the slot, from now on; the map is out of date.
// "ASK 3999 10.0.0.7:6381": the slot is on its way there; ask that node for this one key, after an
// ASKING, and leave the map alone.
// IPv6 hosts come without brackets, so the port stands behind the last colon.
// Source: Redis cluster specification, "MOVED redirection" and "ASK redirection".

#include <cstdint>
#include <optional>
#include <string_view>

#include "net/address.hpp"

namespace kvferry::redis {

enum class RedirectKind : std::uint8_t { kMoved, kAsk };

struct Redirect {
  RedirectKind kind = RedirectKind::kMoved;
  std::uint16_t slot = 0;
  // Without a host when the server knows no name for the node ("?"): refresh the map and go by it.
  net::Endpoint endpoint;
};

// `text` is an error line without its '-'; an empty host in it is `asked_host`, the host of the
// node that answered. nullopt: it is no redirect, or a malformed one. Allocates only the host.
[[nodiscard]] std::optional<Redirect> parse_redirect(std::string_view text,
                                                     std::string_view asked_host);

}  // namespace kvferry::redis
