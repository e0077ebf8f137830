#include "node/session.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvferry::node {
namespace {

constexpr std::size_t kFirstRoomBytes = 60 * kKiB;  // of a value: what a first page takes

std::string unknown(const Arguments& arguments) {
  std::string first;
  for (std::size_t i = 1; i < arguments.size() && first.size() < kShownBytesMax; ++i) {
    first += "'" + shown(arguments[i], kShownBytesMax - first.size()) + "' ";
  }
  return "ERR unknown command '" + shown(arguments[0]) + "', with args beginning with: " + first;
}

std::string forbidden(const User& user, std::string_view command) {
  return "NOPERM User " + user.name + " has no permissions to run the '" + std::string(command) +
         "' command";
}

bool arity_fits(int arity, std::size_t count) {
  return arity >= 0 ? count == static_cast<std::size_t>(arity)
                    : count >= static_cast<std::size_t>(-arity);
}

}  // namespace

Session::Session(Context& context, std::uint64_t id, bool on_unix)
    : context_(context),
      id_(id),
      on_unix_(on_unix),
      user_(nullptr),
      parser_(context.limits.request),
      leases_(context.limits.lease) {
  log_in(context.access.anonymous(on_unix));
}

// --- Bytes --------------------------------------------------------------------------------------

std::size_t Session::plan(std::span<iovec> pieces, MutableBytes scratch) {
  std::size_t count = 0;
  planned_value_bytes_ = 0;
  scratch_ = scratch;
  const std::size_t remaining = parser_.value_remaining();
  std::size_t offset = value_size_ - remaining;
  if (remaining > 0) make_room(offset + 1);
  if (value_ != nullptr && remaining > 0) {
    const std::size_t end = value_->room_bytes();
    while (offset < end && count + 1 < pieces.size()) {
      const MutableBytes piece = value_->piece(offset);
      const std::size_t length = std::min(piece.size(), end - offset);
      pieces[count++] = {.iov_base = piece.data(), .iov_len = length};
      offset += length;
      planned_value_bytes_ += length;
    }
    if (offset < value_size_) return count;
  }
  pieces[count++] = {.iov_base = scratch.data(), .iov_len = scratch.size()};
  return count;
}

void Session::received(std::size_t bytes, UnixMs now) {
  now_ = now;
  work_ = 0;
  const std::size_t landed = std::min(bytes, std::exchange(planned_value_bytes_, 0));
  if (landed > 0) parser_.take_value(landed);
  parse(ByteView(scratch_).first(bytes - landed));
}

void Session::sent(std::size_t bytes, UnixMs now) {
  now_ = now;
  outbox_.sent(bytes);
  if (!pending_.empty() && wants_bytes() && !has_more()) parse({});
}

void Session::resume(UnixMs now) {
  now_ = now;
  work_ = 0;
  parse({});
}

// What cannot be parsed yet stays in pending_.
void Session::parse(ByteView bytes) {
  if (pending_.empty()) {
    const std::size_t used = parse_some(bytes);
    pending_.assign(as_text(bytes.subspan(used)));
    return;
  }
  pending_.append(as_text(bytes));
  const std::size_t used = parse_some(as_bytes(pending_));
  pending_.erase(0, used);
}

std::size_t Session::parse_some(ByteView bytes) {
  std::size_t used = 0;
  while (wants_bytes() && work_ < kWorkMax) {
    const ByteView rest = bytes.subspan(used);
    if (parser_.value_remaining() > 0) {
      const std::size_t count = std::min(rest.size(), parser_.value_remaining());
      if (count == 0) break;
      value_arrived(rest.first(count));
      used += count;
      continue;
    }
    std::size_t consumed = 0;
    const RequestParser::State state = parser_.next(rest, consumed);
    used += consumed;
    if (state == RequestParser::State::kNeedMore) break;
    if (state == RequestParser::State::kValue) {
      begin_value(parser_.value_remaining());
    } else if (state == RequestParser::State::kCommand) {
      execute();
    } else {
      fail(parser_.error());
      closing_ = true;
    }
  }
  return closing_ ? bytes.size() : used;
}

void Session::begin_value(std::size_t size_bytes) {
  value_size_ = size_bytes;
  value_.reset();
  value_refused_.clear();
  const CommandSpec* set = find_command("SET");
  value_refused_ = refusal(*set, parser_.arguments());
  if (!value_refused_.empty()) return;
  auto value = context_.values.reserve(value_size_, 0);
  if (!value && value.error().code == Errc::kInvalidArgument) {
    value_refused_ = "ERR " + value.error().context;
    return;
  }
  spoken();  // from here on the pace says how long it may take
  if (!value) return refuse_value(value.error().context);
  value_ = std::move(*value);
}

// For the first `bytes` of the value. It is doubled each time, so that who sends half of a value
// holds little more than that.
void Session::make_room(std::size_t bytes) {
  if (value_ == nullptr || bytes <= value_ticket_.bytes()) return;
  const std::size_t room =
      std::min(value_size_, std::max({bytes, 2 * value_ticket_.bytes(), kFirstRoomBytes}));
  if (!context_.in_flight.receive(value_ticket_, room - value_ticket_.bytes())) {
    return refuse_value("too many bytes are on their way already");
  }
  const Outcome extended = context_.values.extend(*value_, room);
  if (!extended) refuse_value(extended.error().context);
}

// What has come goes, and what comes is read away.
void Session::refuse_value(std::string why) {
  value_.reset();
  value_ticket_ = {};
  value_refused_ = "BUSY " + std::move(why);
  Counters::add(context_.counters.busy);
  missed_pages_ = true;
}

void Session::spoken() {
  if (spoke_ || user_ == nullptr) return;
  spoke_ = true;
  context_.clients.spoke(id_);
}

// The part that came into scratch with what is around it.
void Session::value_arrived(ByteView bytes) {
  const std::size_t offset = value_size_ - parser_.value_remaining();
  parser_.take_value(bytes.size());
  copy_value(offset, bytes);
}

void Session::copy_value(std::size_t offset, ByteView bytes) {
  make_room(offset + bytes.size());
  while (value_ != nullptr && !bytes.empty()) {
    const MutableBytes piece = value_->piece(offset);
    const std::size_t count = std::min(piece.size(), bytes.size());
    std::memcpy(piece.data(), bytes.data(), count);
    bytes = bytes.subspan(count);
    offset += count;
  }
}

// --- Commands -----------------------------------------------------------------------------------

void Session::execute() {
  const Arguments& arguments = parser_.arguments();
  Counters::add(context_.counters.commands);
  expire_leases(now_);
  const CommandSpec* found = find_command(arguments[0]);
  if (same_word(arguments[0], "POST") || same_word(arguments[0], "Host:")) {
    closing_ = true;  // a browser's, whose page has commands in the lines that follow
  } else if (found == nullptr) {
    fail(unknown(arguments));
  } else if (!arity_fits(found->arity, arguments.size())) {
    fail("ERR wrong number of arguments for '" + lower(found->name) + "' command");
  } else if (const std::string why = refusal(*found, arguments); !why.empty()) {
    fail(why);
  } else {
    (this->*found->run)(arguments);
  }
  work_ += found != nullptr && found->first_key != 0 ? 1 : kWorkOfOthers;
  value_.reset();
  value_ticket_ = {};
  parser_.forget();
  spoken();
}

std::string Session::refusal(const CommandSpec& command, const Arguments& arguments) const {
  if ((command.flags & CommandSpec::kNoAuth) != 0) return {};
  if (user_ == nullptr) {
    return std::string(context_.access.stranger("NOAUTH Authentication required."));
  }
  const bool writes = (command.flags & CommandSpec::kWrite) != 0;
  const bool reads = (command.flags & CommandSpec::kRead) != 0;
  if ((writes && !user_->writes()) || (reads && !user_->reads()) ||
      ((command.flags & CommandSpec::kAdmin) != 0 && !user_->admin)) {
    return forbidden(*user_, lower(command.name));
  }
  if (command.first_key == 0) return {};
  const std::size_t first = static_cast<std::size_t>(command.first_key);
  const std::size_t last = command.last_key < 0 ? arguments.size() - 1 : first;
  for (std::size_t i = first; i <= last && i < arguments.size(); ++i) {
    if (writes ? !user_->may_write(arguments[i]) : !user_->may_read(arguments[i])) {
      return "NOPERM No permissions to access a key";
    }
    if (writes && arguments[i].size() > context_.limits.key_bytes_max) {
      return "ERR a key is longer than " + std::to_string(context_.limits.key_bytes_max) + " bytes";
    }
  }
  return {};
}

bool Session::has_arity(const Arguments& arguments, int arity) {
  if (arity_fits(arity, arguments.size())) return true;
  fail("ERR wrong number of arguments for '" + lower(arguments[0]) + "|" + lower(arguments[1]) +
       "' command");
  return false;
}

bool Session::is_admin(std::string_view command) {
  if (user_->admin) return true;
  fail(forbidden(*user_, command));
  return false;
}

void Session::unknown_subcommand(const Arguments& arguments) {
  std::string name = lower(arguments[0]);
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  fail("ERR unknown subcommand '" + shown(arguments[1]) + "'. Try " + name + " HELP.");
}

// Another user has none of what this connection was lent, and hears of no key that he may not read:
// such prefixes end, and with them all that was known by them.
void Session::log_in(const User* user) {
  if (user != user_) leases_.clear();
  user_ = user;
  parser_.set_authenticated(user != nullptr);
  bool narrowed = false;
  context_.clients.update(id_, [&](ClientEntry& client) {
    client.user = user != nullptr ? user->name : "";
    narrowed = std::erase_if(client.prefixes, [&](const std::string& prefix) {
                 return user == nullptr || !user->may_read(prefix);
               }) > 0;
  });
  if (narrowed) reply().push(2).bulk("invalidate").null();
}

bool Session::log_in(std::string_view name, std::string_view password) {
  const User* user = context_.access.check(name, password);
  if (user == nullptr) {
    fail(context_.access.stranger("WRONGPASS invalid username-password pair or user is disabled."));
    return false;
  }
  log_in(user);
  return true;
}

void Session::deliver() {
  Clients::News news = context_.clients.take(id_);
  const SessionLimits& limits = context_.limits;
  const std::size_t texts_max = limits.unread_text_bytes_max + limits.announced_bytes_max;
  if (news.killed || outbox_.text_bytes() > texts_max) {
    dropped_ = true;
    return;
  }
  if (!resp3_) return;
  if (news.cleared) reply().push(2).bulk("invalidate").null();
  // Of the time before another user came.
  std::erase_if(news.keys, [&](const std::string& key) { return !user_->may_read(key); });
  if (news.keys.empty()) return;
  Reply out = reply();
  out.push(2).bulk("invalidate").array(news.keys.size());
  for (const std::string& key : news.keys) out.bulk(key);
}

}  // namespace kvferry::node
