#include "redis/presence/feed.hpp"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "redis/link.hpp"
#include "redis/server_error.hpp"

namespace kvferry::redis {
namespace {

constexpr std::size_t kCursorBytesMax = 20;  // an unsigned 64-bit number

constexpr std::string_view kScanCount = "1000";
constexpr Nanos kBeatGap = 100 * kMilli;  // also after a redirect, which asks for one at once

Error bad(std::string_view command) {
  return {Errc::kProtocol, std::string(command) + ": an answer that makes no sense"};
}

// From INFO: how many connections get announcements; 0: it does not say.
std::uint64_t tracking_clients(std::string_view info) {
  constexpr std::string_view kName = "tracking_clients:";
  const std::size_t at = info.find(kName);
  std::uint64_t count = 0;
  if (at == std::string_view::npos) return count;
  const std::string_view number = info.substr(at + kName.size(), 9);
  std::from_chars(number.data(), number.data() + number.size(), count);
  return count;
}

}  // namespace

PresenceFeed::PresenceFeed(PresenceState& state, PresenceState::NodeId node, bool clustered,
                           Nanos silence_max, Nanos now, std::uint64_t load_max)
    : state_(state),
      node_(node),
      clustered_(clustered),
      silence_max_(silence_max),
      pattern_(escape_glob(state.prefix()) + "*"),
      load_(load_max, now),
      scan_at_(state.overflowed(node) ? now + kOverflowPause : now) {}

void PresenceFeed::ask(std::string& out, Kind kind, std::initializer_list<std::string_view> words,
                       Nanos now) {
  out += encode_words({words.begin(), words.size()});
  owed_.push_back({kind, now});
}

std::string PresenceFeed::next(Nanos now) {
  std::string out;
  if (!tracking_) {
    if (!owed_.empty()) return out;
    ask(out, Kind::kTracking, {"CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", state_.prefix()},
        now);
    return out;
  }
  weigh(now);
  if (!scanning_ && !load_.too_much() && now >= scan_at_ && state_.wants_snapshot(node_)) {
    state_.begin_snapshot(node_);
    scanning_ = true;
    scan_at_ = now + kSnapshotGap;
    cursor_.assign(1, '0');
  }
  if (beats_ == 0 && now >= beat_at_) beat(out, Kind::kNodes, now);
  if (load_.limited() && now >= count_at_) {
    count_at_ = now + kCountEvery;
    ask(out, Kind::kClients, {"INFO", "clients"}, now);
  }
  if (std::exchange(scanned_, false)) beat(out, Kind::kLastNodes, now);
  if (!cursor_.empty()) {
    ask(out, Kind::kScan, {"SCAN", cursor_, "MATCH", pattern_, "COUNT", kScanCount}, now);
    cursor_.clear();
  }
  while (const auto key = state_.next_question(node_)) {
    ask(out, Kind::kExists, {"EXISTS", *key}, now);
  }
  return out;
}

void PresenceFeed::beat(std::string& out, Kind kind, Nanos now) {
  ++beats_;
  beat_at_ = now + kBeat;
  if (!clustered_) return ask(out, Kind::kPing, {"PING"}, now);
  ask(out, Kind::kInfo, {"CLUSTER", "INFO"}, now);
  ask(out, kind, {"CLUSTER", "NODES"}, now);
}

Nanos PresenceFeed::wake_at() const {
  Nanos at = owed_.empty() ? kNever : owed_.front().since + silence_max_ + 1;
  if (!tracking_) return at;
  if (beats_ == 0) at = std::min(at, beat_at_);
  if (!scanning_ && !load_.too_much() && state_.wants_snapshot(node_)) at = std::min(at, scan_at_);
  return at;
}

void PresenceFeed::weigh(Nanos now) {
  const bool before = load_.too_much();
  if (load_.update(now) == before || before) return;
  // Nothing is known from here on, so nothing is asked. A SCAN that runs comes to its end.
  state_.flushed(node_);
}

Outcome PresenceFeed::receive(const resp::Value& value, Nanos now) {
  if (value.is_push()) return on_push(value);
  if (owed_.empty()) return Error{Errc::kProtocol, "a reply that nobody asked for"};
  const Kind kind = owed_.front().kind;
  owed_.pop_front();
  return on_reply(kind, value, now);
}

Outcome PresenceFeed::on_push(const resp::Value& push) {
  if (push.items.empty() || push.items[0].text != "invalidate") return Done{};
  if (push.items.size() != 2) return bad("invalidate");
  const resp::Value& keys = push.items[1];
  if (keys.is_null()) {  // FLUSHALL; or FLUSHDB, whichever database it was
    state_.flushed(node_);
    return Done{};
  }
  if (!keys.is_list()) return bad("invalidate");
  load_.announced(keys.items.size());
  for (const resp::Value& key : keys.items) state_.changed(node_, key.text);
  return Done{};
}

Outcome PresenceFeed::on_reply(Kind kind, const resp::Value& reply, Nanos now) {
  if (kind == Kind::kExists) return on_exists(reply, now);
  if (kind == Kind::kClients) {
    load_.views(tracking_clients(reply.text));
    if (reply.is_error()) count_at_ = kNever;  // a user who may not ask: ours alone
    return Done{};
  }
  if (reply.is_error()) return Error{Errc::kServer, printable(reply.text)};
  switch (kind) {
    case Kind::kTracking: {
      if (reply.text != "OK") return bad("CLIENT TRACKING");
      tracking_ = true;
      if (clustered_) return Done{};
      SlotSet everything;
      everything.add(0);
      state_.serves(node_, everything);
      return Done{};
    }
    case Kind::kInfo:
      cluster_up_ = cluster_is_up(reply.text);
      return Done{};
    case Kind::kNodes:
    case Kind::kLastNodes: {
      --beats_;
      const auto slots = parse_own_slots(reply.text);
      if (!slots) return slots.error();
      state_.serves(node_, cluster_up_ ? *slots : SlotSet{});
      if (kind == Kind::kLastNodes) end_snapshot();
      return Done{};
    }
    case Kind::kScan:
      return on_scan(reply, now);
    default:
      --beats_;
      return Done{};
  }
}

Outcome PresenceFeed::on_scan(const resp::Value& reply, Nanos now) {
  if (!reply.is_list() || reply.items.size() != 2 || !reply.items[0].is_text() ||
      reply.items[0].text.empty() || reply.items[0].text.size() > kCursorBytesMax ||
      !reply.items[1].is_list()) {
    return bad("SCAN");
  }
  for (const resp::Value& key : reply.items[1].items) state_.found(node_, key.text);
  const bool overflowed = state_.overflowed(node_);
  if (overflowed) scan_at_ = now + kOverflowPause;
  if (reply.items[0].text != "0" && !overflowed) {
    cursor_ = reply.items[0].text;
    return Done{};
  }
  if (clustered_) {
    scanned_ = true;
  } else {
    end_snapshot();
  }
  return Done{};
}

void PresenceFeed::end_snapshot() {
  state_.end_snapshot(node_);
  scanning_ = false;
}

Outcome PresenceFeed::on_exists(const resp::Value& reply, Nanos now) {
  if (reply.type == resp::Type::kInteger) {
    state_.answered(node_, reply.integer != 0);
    if (state_.overflowed(node_)) scan_at_ = std::max(scan_at_, now + kOverflowPause);
    return Done{};
  }
  if (!reply.is_error()) return bad("EXISTS");
  const bool elsewhere = reply.text.starts_with("MOVED ") || reply.text.starts_with("ASK ") ||
                         reply.text.starts_with("TRYAGAIN");
  if (!clustered_ || !elsewhere) return Error{Errc::kServer, printable(reply.text)};
  state_.redirected(node_);
  beat_at_ = std::min(beat_at_, std::max(now, beat_at_ - kBeat + kBeatGap));
  return Done{};
}

std::string escape_glob(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace kvferry::redis
