#include "redis/presence/slots.hpp"

#include <optional>

#include "redis/cluster/topology_endpoint.hpp"

namespace kvferry::redis {
namespace {

// Cuts the text up to `end` off the front; the rest when there is none.
std::string_view cut(std::string_view& text, char end) noexcept {
  const std::size_t at = text.find(end);
  const std::string_view front = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return front;
}

bool has_flag(std::string_view flags, std::string_view flag) noexcept {
  while (!flags.empty()) {
    if (cut(flags, ',') == flag) return true;
  }
  return false;
}

std::optional<std::size_t> parse_slot(std::string_view text) noexcept {
  const auto slot = parse_number<std::size_t>(text);
  return slot && *slot < kSlotCount ? slot : std::nullopt;
}

}  // namespace

Result<SlotSet> parse_own_slots(std::string_view cluster_nodes) {
  const Error bad{Errc::kProtocol, "CLUSTER NODES: an answer that makes no sense"};
  while (!cluster_nodes.empty()) {
    std::string_view line = cut(cluster_nodes, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    cut(line, ' ');  // its id
    cut(line, ' ');  // its address
    const std::string_view flags = cut(line, ' ');
    if (!has_flag(flags, "myself")) continue;
    SlotSet slots;
    if (!has_flag(flags, "master")) return slots;
    for (int field = 3; field < 8; ++field) cut(line, ' ');
    SlotSet moving;
    while (!line.empty()) {
      std::string_view word = cut(line, ' ');
      if (word.empty()) continue;
      const bool moves = word.starts_with('[');  // "[93->-id]" leaves, "[93-<-id]" arrives
      if (moves) word.remove_prefix(1);
      const auto first = parse_slot(cut(word, '-'));
      if (!first) return bad;
      if (moves) {
        moving.add(*first);
        continue;
      }
      const auto last = word.empty() ? first : parse_slot(word);
      if (!last || *last < *first) return bad;
      for (std::size_t slot = *first; slot <= *last; ++slot) slots.add(slot);
    }
    return slots - moving;
  }
  return bad;
}

bool cluster_is_up(std::string_view cluster_info) noexcept {
  while (!cluster_info.empty()) {
    std::string_view line = cut(cluster_info, '\n');
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line == "cluster_state:ok") return true;
  }
  return false;
}

}  // namespace kvferry::redis
