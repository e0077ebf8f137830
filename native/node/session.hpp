#pragma once
// Session: the machine of one connection: bytes in, bytes out, and what the commands do.
//
// plan() names where the next bytes go: the rest of a value straight into its pages, then scratch.
// received() says how many came. A value gets pages as it arrives, at most twice of what has come.
// While more than unread_bytes_max of replies wait to be sent, any value in a crowd (see InFlight),
// or the connection is to end, nothing more is taken: what came stays pending, bounded by scratch.
//
// Threads: one. Context outlives it. It sees neither socket nor clock.

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "node/commands.hpp"
#include "node/context.hpp"
#include "node/leases.hpp"
#include "node/reply.hpp"
#include "node/reply_buffer.hpp"
#include "node/request_parser.hpp"

namespace kvferry::node {

class Session {
 public:
  // `id` is its number among the clients; `on_unix`: it came over a Unix socket.
  Session(Context& context, std::uint64_t id, bool on_unix = false);

  // Fills `pieces` with where bytes may go; how many. Requires: wants_bytes(); scratch stays valid
  // until received().
  std::size_t plan(std::span<iovec> pieces, MutableBytes scratch);
  void received(std::size_t bytes, UnixMs now);

  std::size_t gather(std::span<iovec> pieces) const { return outbox_.gather(pieces); }
  // Goes on with what is pending when there is room again.
  void sent(std::size_t bytes, UnixMs now);
  // Ends leases whose time is over; to be called every now and then.
  void expire_leases(UnixMs now);
  // Takes what waits for it in Clients.
  void deliver();

  [[nodiscard]] bool wants_bytes() const noexcept { return !closing_ && !full(); }
  // How much of a value is still to come, and has a place already.
  [[nodiscard]] std::size_t value_remaining() const noexcept {
    const std::size_t remaining = parser_.value_remaining();
    if (value_ == nullptr || remaining == 0) return remaining;
    return value_->room_bytes() - (value_size_ - remaining);
  }
  [[nodiscard]] std::size_t unsent_bytes() const noexcept { return outbox_.bytes(); }
  // Whether more has come than one turn allows: resume() goes on with it.
  [[nodiscard]] bool has_more() const noexcept { return wants_bytes() && work_ >= kWorkMax; }
  void resume(UnixMs now);
  // Whether a command has begun and is not complete.
  [[nodiscard]] bool mid_request() const noexcept {
    return wants_bytes() && !has_more() && (!parser_.at_boundary() || !pending_.empty());
  }
  // All bytes of the command that has begun, as far as they were announced; 0: none has.
  [[nodiscard]] std::size_t due_bytes() const noexcept {
    if (!mid_request()) return 0;
    return parser_.value_remaining() > 0 ? value_size_ : 1;
  }
  // Whether somebody whom the node knows has said a command.
  [[nodiscard]] bool spoke() const noexcept { return spoke_; }
  // Its memory, and that of values which nobody can evict for its sake.
  [[nodiscard]] std::size_t held_bytes() const noexcept {
    return outbox_.held_bytes() + parser_.held_bytes() + pending_.capacity();
  }
  [[nodiscard]] std::size_t held_page_bytes() const noexcept {
    return outbox_.value_bytes() + leases_.bytes() + value_ticket_.bytes();
  }
  // Whether pages were missing since this was asked.
  bool missed_pages() noexcept { return std::exchange(missed_pages_, false); }
  // Nothing more is to be done.
  [[nodiscard]] bool finished() const noexcept { return dropped_ || (closing_ && outbox_.empty()); }

  // Commands; see commands.cpp.
  void ping(const Arguments& arguments);
  void hello(const Arguments& arguments);
  void auth(const Arguments& arguments);
  void client(const Arguments& arguments);
  void select(const Arguments& arguments);
  void get(const Arguments& arguments);
  void lease(const Arguments& arguments);
  void release(const Arguments& arguments);
  void set(const Arguments& arguments);
  void exists(const Arguments& arguments);
  void del(const Arguments& arguments);
  void strlen(const Arguments& arguments);
  void ttl(const Arguments& arguments);
  void pttl(const Arguments& arguments);
  void type(const Arguments& arguments);
  void dbsize(const Arguments& arguments);
  void scan(const Arguments& arguments);
  void info(const Arguments& arguments);
  void config(const Arguments& arguments);
  void flush(const Arguments& arguments);

 private:
  static constexpr std::size_t kWorkMax = 256;
  static constexpr std::size_t kWorkOfOthers = 32;  // of a command that names no key
  static constexpr std::size_t kKeysVisitedAsOne = 4;

  [[nodiscard]] bool full() const noexcept {
    return outbox_.bytes() > context_.limits.unread_bytes_max ||
           outbox_.text_bytes() > context_.limits.unread_text_bytes_max ||
           (outbox_.value_bytes() > 0 && context_.in_flight.crowded());
  }
  [[nodiscard]] Reply reply() { return {outbox_.text(), resp3_}; }
  void fail(std::string_view error) { reply().error(error); }
  void syntax_error() { fail("ERR syntax error"); }
  void unknown_subcommand(const Arguments& arguments);
  // Whether there are so many arguments behind a word and its second one; else answers.
  bool has_arity(const Arguments& arguments, int arity);
  // Whether this user may use a command of administrators; else answers.
  bool is_admin(std::string_view command);

  void parse(ByteView bytes);
  std::size_t parse_some(ByteView bytes);
  void begin_value(std::size_t size_bytes);
  void make_room(std::size_t bytes);
  void refuse_value(std::string why);
  void spoken();
  void value_arrived(ByteView bytes);
  void copy_value(std::size_t offset, ByteView bytes);
  void execute();
  // Why this user may not run it with these arguments; empty: he may.
  [[nodiscard]] std::string refusal(const CommandSpec& command, const Arguments& arguments) const;
  void log_in(const User* user);
  bool log_in(std::string_view name, std::string_view password);
  void set_name(std::string_view name);

  // Nothing: it has answered.
  std::optional<WriteOptions> set_options(const Arguments& arguments);
  std::vector<std::string> matching(std::uint64_t& cursor, std::size_t count,
                                    std::string_view pattern);
  void ttl_in(const Arguments& arguments, std::int64_t unit_ms);

  void client_list();
  void client_kill(const Arguments& arguments);
  void client_tracking(const Arguments& arguments);
  void client_info();

  Context& context_;
  const std::uint64_t id_;
  const bool on_unix_;
  const User* user_;  // of Access; null: unknown
  RequestParser parser_;
  ReplyBuffer outbox_;
  Leases leases_;
  std::string pending_;  // received and not parsed
  bool resp3_ = false;
  bool closing_ = false;  // when all is sent
  bool dropped_ = false;  // at once
  std::size_t work_ = 0;  // done in this turn: commands that name a key are the unit
  bool spoke_ = false;
  bool missed_pages_ = false;
  UnixMs now_ = 0;

  // The value of a SET that arrives.
  std::shared_ptr<StoredValue> value_;
  InFlight::Ticket value_ticket_;
  std::size_t value_size_ = 0;
  std::string value_refused_;  // why it is read away
  std::size_t planned_value_bytes_ = 0;
  MutableBytes scratch_;
};

}  // namespace kvferry::node
