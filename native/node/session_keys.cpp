// The commands of a session that read and write keys.

#include <algorithm>
#include <cstring>
#include <string>

#include "node/glob.hpp"
#include "node/numbers.hpp"
#include "node/session.hpp"

namespace kvferry::node {
namespace {

// Below this a copy costs less than another piece of sendmsg().
constexpr std::size_t kCopiedBytesMax = 2 * kKiB;
constexpr std::string_view kNotInteger = "ERR value is not an integer or out of range";
constexpr std::size_t kScanCountDefault = 10;
constexpr std::size_t kPatternBytesMax = 1024;  // what it takes grows with its length
constexpr std::string_view kLongPattern = "ERR the pattern is longer than 1024 bytes";
constexpr std::size_t kKeysAtOnce = 1024;  // that are visited under one lock

// now + count * unit; nothing when that is no moment.
std::optional<UnixMs> moment(UnixMs now, std::int64_t count, std::int64_t unit_ms) {
  std::int64_t span = 0;
  std::int64_t at = 0;
  if (__builtin_mul_overflow(count, unit_ms, &span) || __builtin_add_overflow(now, span, &at)) {
    return std::nullopt;
  }
  return at;
}

// As strtoul() reads it: with a sign and zeros in front, if somebody likes.
std::optional<std::uint64_t> cursor_of(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  while (text.size() > 1 && text.starts_with('0')) text.remove_prefix(1);
  return number<std::uint64_t>(text);
}

}  // namespace

void Session::get(const Arguments& arguments) {
  ValuePtr value = context_.values.hold(arguments[1], now_);
  Counters::add(value != nullptr ? context_.counters.hits : context_.counters.misses);
  if (value == nullptr) {
    reply().null();
    return;
  }
  const std::size_t size = value->size_bytes();
  if (size <= kCopiedBytesMax) {
    reply().bulk_head(size);
    std::string& out = outbox_.text();
    for (std::size_t offset = 0; offset < size;) {
      const MutableBytes piece = value->piece(offset);
      out.append(as_text(piece));
      offset += piece.size();
    }
    out.append("\r\n");
    return;
  }
  reply().bulk_head(size);
  outbox_.value(std::move(value), context_.in_flight.send(size));
  outbox_.text().append("\r\n");
}

// All words first, and then what the number says: as Valkey, which of two mistakes is named is part
// of the answer.
std::optional<WriteOptions> Session::set_options(const Arguments& arguments) {
  WriteOptions options;
  std::size_t life_at = 0;  // of the number
  for (std::size_t i = 3; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const bool timed = same_word(word, "EX") || same_word(word, "PX");
    if (same_word(word, "NX")) {
      options.if_absent = true;
    } else if (timed && i + 1 < arguments.size() &&
               (life_at == 0 || same_word(arguments[life_at - 1], word))) {
      life_at = ++i;
    } else {
      syntax_error();
      return std::nullopt;
    }
  }
  if (life_at == 0) return options;
  const auto count = number<std::int64_t>(arguments[life_at]);
  if (!count) {
    fail(kNotInteger);
    return std::nullopt;
  }
  const auto at = moment(now_, *count, same_word(arguments[life_at - 1], "EX") ? 1000 : 1);
  if (*count <= 0 || !at) {
    fail("ERR invalid expire time in 'set' command");
    return std::nullopt;
  }
  options.expires = *at;
  return options;
}

void Session::set(const Arguments& arguments) {
  const auto options = set_options(arguments);
  if (!options) return;
  if (!parser_.value_apart()) {  // it was typed in
    begin_value(arguments[2].size());
    copy_value(0, as_bytes(arguments[2]));
  }
  if (value_ == nullptr) return fail(value_refused_);
  if (context_.values.commit(arguments[1], std::move(value_), *options, now_)) {
    reply().simple("OK");
  } else {
    reply().null();
  }
}

void Session::exists(const Arguments& arguments) {
  const bool use = same_word(arguments[0], "TOUCH");
  std::int64_t count = 0;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (context_.values.facts(arguments[i], now_, use)) ++count;
  }
  reply().integer(count);
}

void Session::del(const Arguments& arguments) {
  std::int64_t count = 0;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (context_.values.remove(arguments[i], now_)) ++count;
  }
  reply().integer(count);
}

void Session::strlen(const Arguments& arguments) {
  const auto facts = context_.values.facts(arguments[1], now_, true);
  reply().integer(facts ? static_cast<std::int64_t>(facts->size_bytes) : 0);
}

void Session::type(const Arguments& arguments) {
  reply().simple(context_.values.facts(arguments[1], now_, false) ? "string" : "none");
}

// --- Time to live -------------------------------------------------------------------------------

void Session::ttl_in(const Arguments& arguments, std::int64_t unit_ms) {
  const auto facts = context_.values.facts(arguments[1], now_, false);
  if (!facts || facts->expires == kForever) {
    reply().integer(facts ? -1 : -2);
    return;
  }
  reply().integer((facts->expires - now_ + unit_ms / 2) / unit_ms);
}

void Session::ttl(const Arguments& arguments) { ttl_in(arguments, 1000); }
void Session::pttl(const Arguments& arguments) { ttl_in(arguments, 1); }
// --- All keys -----------------------------------------------------------------------------------

void Session::dbsize(const Arguments&) {
  reply().integer(static_cast<std::int64_t>(context_.values.usage().keys));
}

// Of `count` keys from `cursor` on those that this user may read and that match; moves
// `cursor` on. Patterns are tried without the lock of the store: some take their time.
std::vector<std::string> Session::matching(std::uint64_t& cursor, std::size_t count,
                                           std::string_view pattern) {
  std::vector<std::string> found;
  cursor = context_.values.scan(cursor, count, now_,
                                [&](std::string_view key) { found.emplace_back(key); });
  work_ += found.size() / kKeysVisitedAsOne;
  std::erase_if(found, [&](const std::string& key) {
    return !user_->may_read(key) || !glob_match(pattern, key);
  });
  return found;
}

void Session::scan(const Arguments& arguments) {
  const auto cursor = cursor_of(arguments[1]);
  if (!cursor) return fail("ERR invalid cursor");
  std::size_t count = kScanCountDefault;
  std::string_view pattern = "*";
  for (std::size_t i = 2; i < arguments.size(); i += 2) {
    const std::string& word = arguments[i];
    if (i + 1 == arguments.size()) return syntax_error();
    if (same_word(word, "COUNT")) {
      const auto wanted = number<std::int64_t>(arguments[i + 1]);
      if (!wanted) return fail(kNotInteger);
      if (*wanted < 1) return syntax_error();
      count = std::min(static_cast<std::size_t>(*wanted), context_.limits.scan_count_max);
    } else if (same_word(word, "MATCH")) {
      pattern = arguments[i + 1];
      if (pattern.size() > kPatternBytesMax) return fail(kLongPattern);
    } else {
      return syntax_error();
    }
  }
  std::uint64_t next = *cursor;
  std::string listed;
  std::size_t listed_count = 0;
  do {
    const std::size_t part = std::min(count, kKeysAtOnce);
    count -= part;
    for (const std::string& key : matching(next, part, pattern)) {
      Reply(listed, resp3_).bulk(key);
      ++listed_count;
    }
  } while (next != 0 && count > 0 && listed.size() < context_.limits.scanned_bytes_max);
  reply().array(2).bulk(std::to_string(next)).array(listed_count);
  outbox_.text().append(listed);
}

void Session::flush(const Arguments& arguments) {
  const bool word = arguments.size() == 2 &&
                    (same_word(arguments[1], "SYNC") || same_word(arguments[1], "ASYNC"));
  if (arguments.size() > 1 && !word) return syntax_error();
  if (!user_->may_write("")) return fail("NOPERM No permissions to access a key");
  context_.values.clear();
  reply().simple("OK");
}

}  // namespace kvferry::node
