// The commands of a session for one-sided reads: LEASE and RELEASE, which no other server has.

#include <algorithm>

#include "node/numbers.hpp"
#include "node/session.hpp"

namespace kvferry::node {
namespace {

// What is shorter, such as the frame in front of a page, goes with the answer.
constexpr std::size_t kToldBytesMax = 256;
constexpr std::size_t kKeysMax = 1024;

// A value as its reader gets it: bytes, and [address, length] of what is read from memory.
void tell(Reply& out, const StoredValue& value) {
  std::vector<MutableBytes> pieces;
  for (std::size_t offset = 0; offset < value.size_bytes();) {
    pieces.push_back(value.piece(offset));
    offset += pieces.back().size();
  }
  out.array(pieces.size());
  for (const MutableBytes piece : pieces) {
    if (piece.size() <= kToldBytesMax) {
      out.bulk(as_text(piece));
    } else {
      out.array(2)
          .integer(reinterpret_cast<std::intptr_t>(piece.data()))
          .integer(static_cast<std::int64_t>(piece.size()));
    }
  }
}

}  // namespace

void Session::lease(const Arguments& arguments) {
  if (arguments.size() == 2 && same_word(arguments[1], "AGENT")) {
    const auto told = context_.agent.told();
    if (!told) {
      reply().null();
      return;
    }
    reply().array(2).integer(static_cast<std::int64_t>(told->incarnation)).bulk(told->metadata);
    return;
  }
  if (arguments.size() > kKeysMax + 2) return fail("ERR too many keys for one lease");
  if (arguments.size() < 3) return fail("ERR wrong number of arguments for 'lease' command");
  const auto wanted_ms = number<std::int64_t>(arguments[1]);
  if (!wanted_ms) return fail("ERR value is not an integer or out of range");
  if (*wanted_ms <= 0) return fail("ERR invalid lease time in 'lease' command");
  const std::uint64_t incarnation = context_.agent.incarnation();
  if (incarnation == 0) return fail("ERR this node has no agent for one-sided reads");
  const UnixMs time_ms = std::min<UnixMs>(*wanted_ms, context_.limits.lease.time_ms_max);

  std::vector<ValuePtr> values;
  std::size_t bytes = 0, found = 0;
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    values.push_back(context_.values.hold(arguments[i], now_));
    if (values.back() == nullptr) continue;
    bytes += values.back()->size_bytes();
    ++found;
  }
  Counters::add(context_.counters.hits, found);
  Counters::add(context_.counters.misses, values.size() - found);
  std::uint64_t id = 0;
  std::vector<ValuePtr> held = values;  // for the answer
  if (found > 0) {
    std::string_view why = leases_.refusal(bytes);
    auto ticket = why.empty() ? context_.in_flight.take(bytes) : std::nullopt;
    if (!ticket) {
      if (why.empty()) why = "too many bytes are on their way already";
      Counters::add(context_.counters.busy);
      missed_pages_ = true;
      return fail("BUSY " + std::string(why));
    }
    id = leases_.add(std::move(held), bytes, std::move(*ticket), now_ + time_ms);
    Counters::add(context_.counters.leases);
  }
  Reply out = reply();
  out.array(4).integer(static_cast<std::int64_t>(id)).integer(time_ms);
  out.integer(static_cast<std::int64_t>(incarnation)).array(values.size());
  for (const ValuePtr& value : values) {
    if (value == nullptr) {
      out.null();
    } else {
      tell(out, *value);
    }
  }
}

void Session::release(const Arguments& arguments) {
  std::int64_t count = 0;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const auto id = number<std::uint64_t>(arguments[i]);
    if (!id) return fail("ERR value is not an integer or out of range");
    if (leases_.release(*id)) ++count;
  }
  reply().integer(count);
}

void Session::expire_leases(UnixMs now) {
  Counters::add(context_.counters.leases_expired, leases_.expire(now));
}

}  // namespace kvferry::node
