#include "sim/node.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "codec/checksum.hpp"
#include "sim/addresses.hpp"
#include "sim/tokens.hpp"

namespace kvferry::sim {
namespace {

std::optional<Verb> verb_named(std::string_view word) noexcept {
  if (word == "GET") return Verb::kGet;
  if (word == "SET") return Verb::kSet;
  if (word == "EXISTS") return Verb::kExists;
  if (word == "TOUCH") return Verb::kTouch;
  if (word == "DEL") return Verb::kDelete;
  return std::nullopt;
}

// The number behind a RESP type byte; the position behind its line, or npos.
std::size_t read_number(std::string_view input, std::size_t at, std::size_t& number) noexcept {
  const std::size_t end = input.find("\r\n", at);
  if (end == std::string_view::npos) return end;
  number = 0;
  std::from_chars(input.data() + at + 1, input.data() + end, number);
  return end + 2;
}

}  // namespace

bool Node::serve(Wire& wire) {
  const std::string_view input = wire.up.here();
  if (input.size() < std::max<std::size_t>(wire.session.needed, 1)) return false;
  Words words;
  std::size_t count = 0;
  const std::size_t length = parse(input, words, count, wire.session.needed);
  if (length == 0) return false;
  context_.journal.note("command at", id_, static_cast<std::int64_t>(length));
  answer(wire, words, count);
  wire.up.take(length);
  wire.session.needed = 0;
  return true;
}

std::size_t Node::parse(std::string_view input, Words& words, std::size_t& count,
                        std::size_t& needed) const noexcept {
  std::size_t at = read_number(input, 0, count);
  if (at == std::string_view::npos) return 0;
  if (input[0] != '*' || count > words.size()) {
    context_.journal.fail("the client does not speak RESP");
    return 0;
  }
  for (std::size_t index = 0; index < count; ++index) {
    std::size_t length = 0;
    const std::size_t begin = read_number(input, at, length);
    if (begin == std::string_view::npos) return 0;
    if (input[at] != '$') {
      context_.journal.fail("a command of the client is out of step");
      return 0;
    }
    if (input.size() < begin + length + 2) {
      needed = begin + length + 2;
      return 0;
    }
    words[index] = input.substr(begin, length);
    at = begin + length + 2;
  }
  return at;
}

Entry* Node::find(std::size_t entry) noexcept {
  Entry& found = table[entry];
  if (found.present && found.expires_at <= context_.journal.now()) found.present = false;
  return found.present ? &found : nullptr;
}

void Node::forget_all() noexcept {
  for (Entry& entry : table) entry.present = false;
}

void Node::reply(Wire& wire, std::string_view text) {
  if (!wire.node_holds) return;
  Random& random = context_.random;
  if (context_.plan.pushes && wire.session.resp3 && random.one_in(4)) {
    wire.down.append(random.one_in(2) ? ">2\r\n$3\r\nhey\r\n*1\r\n+you\r\n"
                                      : "|1\r\n+ttl\r\n:3600\r\n");
  }
  if (context_.plant == Plant::kDropReply && random.one_in(32)) return;
  if (context_.plant == Plant::kSwapReplies && wire.session.held.empty() && random.one_in(16)) {
    wire.session.held = text;
    return;
  }
  wire.down.append(text);
  if (!wire.session.held.empty()) wire.down.append(std::exchange(wire.session.held, {}));
}

void Node::answer(Wire& wire, const Words& words, std::size_t count) {
  const std::string_view word = words[0];
  if (const auto verb = verb_named(word); verb && count > 1) {
    return execute(wire, *verb, words, count);
  }
  if (word == "HELLO" || word == "AUTH") return greet(wire, words, count);
  if (!knows(wire.session)) return reply(wire, "-NOAUTH Authentication required.\r\n");
  if (word == "ASKING") wire.session.asking = true;
  if (word == "READONLY") wire.session.read_only = true;
  if (word != "PING") return reply(wire, "+OK\r\n");
  context_.ledger.executed({Verb::kPing, 0, Deed::kYes});
  reply(wire, "+PONG\r\n");
}

void Node::greet(Wire& wire, const Words& words, std::size_t count) {
  const bool hello = words[0] == "HELLO";
  if (hello && context_.plan.resp2) return reply(wire, "-ERR unknown command 'HELLO'\r\n");
  const auto* auth = std::find(words.begin(), words.begin() + count, "AUTH");
  const auto at = static_cast<std::size_t>(auth - words.begin());
  const std::string_view password = at + 2 < count ? words[at + 2] : std::string_view();
  if (context_.plan.credentials && !is_valid_token(password, context_.journal.now())) {
    return reply(wire, "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
  }
  wire.session.authenticated = true;
  if (!hello) return reply(wire, "+OK\r\n");
  wire.session.resp3 = true;
  reply(wire, is_replica() ? "%2\r\n$6\r\nserver\r\n$3\r\nsim\r\n$4\r\nrole\r\n$7\r\nreplica\r\n"
                           : "%2\r\n$6\r\nserver\r\n$3\r\nsim\r\n$4\r\nrole\r\n$6\r\nmaster\r\n");
}

void Node::busy(Wire& wire, Verb verb, std::size_t entry, Deed deed, std::string_view text) {
  context_.ledger.executed({verb, static_cast<std::uint8_t>(entry), deed});
  reply(wire, text);
}

void Node::redirect(Wire& wire, const char* word, std::size_t entry, int to) {
  context_.journal.note(word, static_cast<std::int64_t>(entry), to);
  std::string text = "-";
  text.append(word).append(" ").append(std::to_string(slot_of(entry))).append(" ");
  // An empty host means: the one that was asked.
  if (!context_.random.one_in(4)) text += kHost;
  reply(wire, text.append(":").append(std::to_string(kPortBase + to)).append("\r\n"));
}

bool Node::permits(Wire& wire, Verb verb, std::size_t entry, bool asking) {
  const Nanos now = context_.journal.now();
  const bool writes = verb == Verb::kSet || verb == Verb::kDelete;
  if (!knows(wire.session)) {
    busy(wire, verb, entry, Deed::kBusy, "-NOAUTH Authentication required.\r\n");
  } else if (now < loading_until) {
    busy(wire, verb, entry, Deed::kBusy, "-LOADING server is loading the dataset in memory\r\n");
  } else if (now < undecided_until) {
    busy(wire, verb, entry, Deed::kBusy, "-CLUSTERDOWN The cluster is down\r\n");
  } else if (context_.plan.topology == redis::Topology::kCluster) {
    if (!owns(wire, verb, entry, asking)) return false;
    if (now < full_until && verb == Verb::kSet) {
      busy(wire, verb, entry, Deed::kRefused, "-OOM command not allowed\r\n");
      return false;
    }
    return true;
  } else if (is_replica() && writes) {
    busy(wire, verb, entry, Deed::kBusy, "-READONLY You can't write against a replica.\r\n");
  } else if (now < full_until && verb == Verb::kSet) {
    busy(wire, verb, entry, Deed::kRefused, "-OOM command not allowed\r\n");
  } else {
    return true;
  }
  return false;
}

bool Node::owns(Wire& wire, Verb verb, std::size_t entry, bool asking) {
  const std::size_t region = region_of(entry);
  if (is_replica()) {
    const bool reads = verb == Verb::kGet || verb == Verb::kExists;
    if (wire.session.read_only && reads && owner[region] == primary) return true;
    redirect(wire, "MOVED", entry, owner[region]);
    return false;
  }
  if (owner[region] == id_) {
    if (migrating[region] == kNobody || find(entry) != nullptr) return true;
    if (context_.random.one_in(8)) {
      reply(wire, "-TRYAGAIN Multiple keys request during rehashing of slot\r\n");
    } else {
      redirect(wire, "ASK", entry, migrating[region]);
    }
    return false;
  }
  if (importing[region] != kNobody && asking) return true;
  redirect(wire, "MOVED", entry, owner[region]);
  return false;
}

void Node::execute(Wire& wire, Verb verb, const Words& words, std::size_t count) {
  const bool asking = std::exchange(wire.session.asking, false);
  const auto entry = entry_of(words[1]);
  if (!entry) return context_.journal.fail("a key that nobody asked for: " + std::string(words[1]));
  if (!permits(wire, verb, *entry, asking)) return;
  const auto tell = [&](Deed deed) {
    context_.ledger.executed({verb, static_cast<std::uint8_t>(*entry), deed});
    reply(wire, deed == Deed::kYes ? ":1\r\n" : ":0\r\n");
  };
  switch (verb) {
    case Verb::kGet:
      return get(wire, *entry);
    case Verb::kSet:
      set(*entry, words, count);
      return reply(wire, "+OK\r\n");
    case Verb::kExists:
    case Verb::kTouch:
      return tell(find(*entry) != nullptr ? Deed::kYes : Deed::kNo);
    case Verb::kPing:  // names no key; see answer()
    case Verb::kCall:
      return;
    case Verb::kDelete: {
      const bool had = find(*entry) != nullptr;
      table[*entry].present = false;
      if (had) log.push_back(static_cast<std::uint8_t>(*entry));
      return tell(had ? Deed::kYes : Deed::kNo);
    }
  }
}

void Node::get(Wire& wire, std::size_t entry) {
  Entry* found = find(entry);
  if (found == nullptr) {
    context_.ledger.executed({Verb::kGet, static_cast<std::uint8_t>(entry), Deed::kAbsent});
    return reply(wire, wire.session.resp3 ? "_\r\n" : "$-1\r\n");
  }
  const bool foreign = context_.plant == Plant::kForeignValue && context_.random.one_in(4);
  const std::size_t shown = foreign ? (entry + 4) % kEntries : entry;
  const Entry& value = *found;
  const bool framed = is_framed(entry / 2);
  context_.ledger.executed({.verb = Verb::kGet,
                            .entry = static_cast<std::uint8_t>(entry),
                            .deed = found->damaged ? Deed::kDamaged : Deed::kHit,
                            .version = found->version,
                            .size = found->size});
  const std::size_t header = framed ? codec::kFrameSizeBytes : 0;
  scratch_.clear();
  scratch_.push_back('$');
  scratch_.append(std::to_string(header + value.size)).append("\r\n");
  const std::size_t begin = scratch_.size();
  if (framed) scratch_ += as_text(value.frame);
  scratch_.resize(begin + header + value.size);
  fill(std::as_writable_bytes(std::span(scratch_)).subspan(begin + header),
       {static_cast<std::uint8_t>(shown / 2), value.version}, value.offset);
  if (value.damaged) {
    char& byte = scratch_[begin + context_.random.below(header + value.size)];
    byte = static_cast<char>(byte ^ 0x20);
  }
  scratch_ += "\r\n";
  reply(wire, scratch_);
}

void Node::set(std::size_t entry, const Words& words, std::size_t count) {
  Entry value{.present = true};
  std::string_view bytes = words[2];
  const std::size_t key = entry / 2;
  if (is_framed(key)) {
    if (bytes.size() < codec::kFrameSizeBytes) {
      return context_.journal.fail("a framed SET without a frame");
    }
    std::ranges::copy(as_bytes(bytes.substr(0, codec::kFrameSizeBytes)), value.frame.begin());
    bytes.remove_prefix(codec::kFrameSizeBytes);
    codec::Frame frame;
    if (codec::decode_frame(value.frame, frame) != codec::FrameFault::kNone ||
        frame.payload_size_bytes != bytes.size() || frame.stripe_index != entry % 2 ||
        frame.payload_checksum != codec::xxh3_64(as_bytes(bytes))) {
      context_.journal.fail("a SET whose frame does not fit: " + std::string(words[1]));
    }
    const auto plan = codec::stripe_plan(frame.original_size_bytes);
    value.offset = codec::stripe_extent(plan, frame.stripe_index).offset;
  }
  value.size = bytes.size();
  if (bytes.size() >= 8) {
    const Stamp stamp = stamp_of(as_bytes(bytes));
    value.version = stamp.version;
    if (stamp.key != key || !carries(as_bytes(bytes), stamp, value.offset)) {
      context_.journal.fail("a SET with bytes that its caller never had: " + std::string(words[1]));
    }
  }
  if (count >= 5 && words[3] == "PX") {
    std::int64_t ttl_ms = 0;
    std::from_chars(words[4].data(), words[4].data() + words[4].size(), ttl_ms);
    value.expires_at = context_.journal.now() + ttl_ms * kMilli;
  }
  if (context_.plant == Plant::kLostWrite && context_.random.one_in(16)) return;
  context_.ledger.executed({.verb = Verb::kSet,
                            .entry = static_cast<std::uint8_t>(entry),
                            .deed = Deed::kStored,
                            .version = value.version,
                            .size = value.size});
  table[entry] = value;
  log.push_back(static_cast<std::uint8_t>(entry));
}

}  // namespace kvferry::sim
