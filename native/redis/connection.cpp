#include "redis/connection.hpp"

#include <algorithm>
#include <utility>

#include "base/best_effort.hpp"

#include "resp/writer.hpp"

namespace kvferry::redis {
namespace {

// What one connection may receive before the others get their turn.
constexpr std::size_t kTurnBytes = 64 * kMiB;
constexpr std::size_t kTurnReceives = 256;
constexpr std::size_t kLowWaterBytesMin = 64 * kKiB;
constexpr std::size_t kLowWaterBytesMax = 512 * kKiB;
constexpr std::size_t kLowWaterBytesOfMany = 256 * kKiB;  // at least

}  // namespace

Connection::Connection(Server& server, const Environment& environment, std::uint64_t token,
                       Role role, bool first, std::uint64_t seed)
    : server_(server),
      config_(server.config()),
      environment_(environment),
      token_(token),
      role_(role),
      first_(first),
      backoff_(config_.reconnect_min, config_.reconnect_max, seed),
      replies_(*this, config_.drain_bytes_max, config_.value_bytes_max) {}

// --- Ending ---

void Connection::end(End how, Reason why, Nanos now) {
  now_ = now;
  const std::string text = server_.endpoint().text() + ": " + std::string(why.text);
  lose(how, {text, why.code}, now);
}

void Connection::lose(End how, Reason reason, Nanos now) {
  leave_unix();
  stay();
  drop_stream();
  state_ = State::kWaiting;
  dial_at_ = add_time(now, backoff_.next());
  give_back(how, reason, now);
  best_effort(
      [&] { server_.log(LogLevel::kInfo, "connection lost: " + std::string(reason.text)); });
  if (how != End::kWithdrawn) {
    server_.stats().connections_broken.fetch_add(1, std::memory_order_relaxed);
  }
  server_.on_lost(role_ == Role::kData, how == End::kSilent, reason, now);
  server_.wake_workers();  // others may take what was given back
}

Error Connection::failure(const net::IoResult& io, Errc usual) const {
  const bool refused = io.state == net::IoState::kRefused;
  return {refused ? Errc::kCertificate : usual, stream_->failure(io)};
}

void Connection::give_back(End how, Reason reason, Nanos now) {
  replies_.abandon([&](Work work) {
    Command& command = *work.command;
    if (work.batch->cancelled()) {
      server_.settle(work, Status::kCancelled, {});
    } else if (work.batch->options().deadline <= now) {
      server_.settle(work, Status::kTimeout, {});
    } else if (how != End::kWithdrawn && ++command.attempts >= config_.attempts_max) {
      server_.settle(work, Status::kUnavailable, reason);
    } else {
      server_.stats().commands_retried.fetch_add(1, std::memory_order_relaxed);
      server_.put_back(work);
    }
  });
  stream_bytes_ = 0;
  leave_stream(now);
}

void Connection::on_no_memory(Nanos now) {
  if (state_ == State::kShut) return;
  now_ = now;
  if (state_ == State::kUp) return lose(End::kBroken, "out of memory", now);
  give_back(End::kBroken, "out of memory", now);  // it may have been ending
  dial_failed({Errc::kSystem, "out of memory"}, now);
}

void Connection::drop_stream() {
  if (role_ == Role::kData) server_.gate().stir(this);
  if (stream_) environment_.watcher.forget(stream_->fd());
  // What was sent and not answered is about to be repeated elsewhere, or given up. A proper end
  // would still deliver it, perhaps behind a newer value of the same key.
  if (state_ == State::kUp && (busy() || answered_early_)) stream_->reset();
  stream_.reset();
  outbox_.clear();
  held_ = {};
  answered_early_ = false;
  probing_ = false;
  asked_at_ = kNever;
  more_ = false;
  watching_writable_ = false;
}

void Connection::shut_down(Nanos now) {
  now_ = now;
  const bool was_up = state_ == State::kUp;
  leave_unix();
  stay();
  drop_stream();
  state_ = State::kShut;
  const bool elsewhere = server_.retired();
  replies_.abandon([&](Work work) {
    if (elsewhere) return server_.put_back(work);
    server_.settle(work, Status::kCancelled, "the client was closed");
  });
  stream_bytes_ = 0;
  leave_stream(now);
  if (was_up) server_.stats().connections_lost.fetch_add(1, std::memory_order_relaxed);
}

// --- Timers ---

Nanos Connection::tick(Nanos now) {
  switch (state_) {
    case State::kShut:
      return kNever;
    case State::kWaiting:
      // While the breaker is open one connection probes; the others wait for its success.
      if (!server_.available() && role_ == Role::kData && !first_) return kNever;
      if (now < dial_at_) return dial_at_;
      dial(now);
      return state_ == State::kWaiting ? dial_at_ : std::min(dial_deadline_, address_deadline_);
    case State::kAuthorizing:
    case State::kResolving:
    case State::kConnecting:
    case State::kGreeting:
      if (now >= dial_deadline_) {
        dial_failed({Errc::kTimeout, server_.endpoint().text() + ": " + awaited()}, now);
        return dial_at_;
      }
      if (now >= address_deadline_ && address_index_ < addresses_.size()) {
        why_ = "no answer in time";
        connect_next(now);
        if (state_ == State::kWaiting) return dial_at_;
      }
      return address_index_ < addresses_.size() ? std::min(address_deadline_, dial_deadline_)
                                                : dial_deadline_;
    case State::kUp:
      break;
  }
  const bool acted = more_ || now >= next_deadline_;
  if (more_) on_replies(now);
  if (now >= next_deadline_) release(now);
  if (state_ == State::kUp && replies_.overdue() > 0 && now >= drain_deadline_) {
    end(End::kWithdrawn, "what was withdrawn takes too long to drain", now);
  }
  if (state_ != State::kUp) return dial_at_;
  if (acted) return now;  // there may be room for more work, or a place to leave
  if (busy()) {
    const Nanos stalled_at = add_time(last_progress_, config_.stall_timeout);
    const Nanos due = replies_.overdue() > 0 ? drain_deadline_ : next_deadline_;
    if (now < stalled_at) {
      return std::min({stalled_at, due, next_deadline_, look_at_unsent(now)});
    }
    on_replies(now);  // the low-water mark may have hidden what came
    if (state_ == State::kUp && last_progress_ == now) return now;
    if (state_ == State::kUp && last_progress_ < now && still_sends()) last_progress_ = now;
    if (state_ == State::kUp && last_progress_ < now) {
      end(End::kSilent, "no byte moved within the stall limit", now);
    }
    if (state_ != State::kUp) return dial_at_;
    return std::min(add_time(now, config_.stall_timeout), next_deadline_);
  }
  const bool suspected = server_.suspected_at() > last_progress_;
  const Nanos ping_at = suspected ? now : add_time(last_progress_, config_.ping_interval);
  if (now < ping_at) return ping_at;
  resp::Writer writer(outbox_.text_space());
  outbox_.take_text(writer.command(1).bulk("PING").written().size());
  replies_.expect({});
  probing_ = true;
  last_progress_ = asked_at_ = now;
  flush(now);
  return add_time(now, config_.stall_timeout);
}

// The kernel holds megabytes that it still sends over a slow link. What it holds is asked some time
// after a send, so that those who are quick never ask; when to look.
Nanos Connection::look_at_unsent(Nanos now) noexcept {
  if (unsent_bytes_ || !streaming_ || direction_ != Direction::kWrite) return kNever;
  const Nanos at = add_time(last_progress_, config_.stall_timeout / 8);
  if (now < at) return at;
  unsent_bytes_ = stream_->unsent_bytes();
  return kNever;
}

bool Connection::still_sends() noexcept {
  if (!streaming_ || direction_ != Direction::kWrite) return false;
  const std::size_t unsent = stream_->unsent_bytes();
  const std::optional before = std::exchange(unsent_bytes_, unsent);
  return before ? *before > unsent : unsent > 0;  // a thread that slept has not looked
}

void Connection::release(Nanos now) {
  if (state_ != State::kUp) return;
  now_ = now;
  const bool can_drain = replies_.release(now);
  next_deadline_ = replies_.next_deadline();
  if (replies_.overdue() > 0) drain_deadline_ = add_time(now, config_.stall_timeout);
  if (!can_drain) {
    end(End::kWithdrawn, "more is owed than may be drained", now);
  } else if (answered_early_) {
    end(End::kWithdrawn, "a value was withdrawn while it was being sent", now);
  }
}

// --- Receiving ---

void Connection::on_ready(const net::Ready& ready, Nanos now) {
  now_ = now;
  switch (state_) {
    case State::kConnecting:
      return on_connecting(now);
    case State::kGreeting:
      if (ready.writable) flush(now);
      if (ready.readable && state_ == State::kGreeting) on_greeting(now);
      return;
    case State::kUp:
      if (ready.readable) on_replies(now);
      if (ready.writable && state_ == State::kUp) flush(now);
      return;
    default:
      return;
  }
}

void Connection::on_replies(Nanos now) {
  // Whoever sends without end may not keep the thread: tick() goes on with what is left.
  more_ = false;
  for (std::size_t taken = 0;;) {
    const auto pieces = replies_.plan();
    std::size_t planned = 0;
    for (const iovec& piece : pieces) planned += piece.iov_len;
    const net::IoResult io = stream_->receive(pieces);
    server_.stats().receives.fetch_add(1, std::memory_order_relaxed);
    if (io.state == net::IoState::kWouldBlock) break;
    if (io.state != net::IoState::kOk)
      return end(End::kBroken, failure(io, Errc::kDisconnect), now);
    taken += std::max(io.bytes, kTurnBytes / kTurnReceives);
    last_progress_ = now;
    probing_ = false;
    if (asked_at_ != kNever) server_.note_round_trip(now - std::exchange(asked_at_, kNever));
    server_.stats().bytes_received.fetch_add(io.bytes, std::memory_order_relaxed);
    const bool sound = replies_.received(io.bytes);
    server_.stats().content_received.fetch_add(
        io.bytes + static_cast<std::size_t>(replies_.gained()), std::memory_order_relaxed);
    if (!sound) {
      // What else was in flight does not pay for a choice of ours.
      return end(replies_.declined() ? End::kWithdrawn : End::kBroken, replies_.error(), now);
    }
    if (answered_early_) return end(End::kBroken, "an answer came before its value was sent", now);
    if (replies_.wants_reconnect()) return end(End::kBroken, "the server asks to reconnect", now);
    if (io.bytes < planned) break;  // the socket is empty for now
    more_ = taken >= kTurnBytes;    // TLS may hold bytes that no poller knows of
    if (more_) break;
  }
  // Few large receives instead of one for each segment: a wake-up costs as much as copying 50 KiB.
  // An eighth of the value leaves server and client enough to do at the same time; beside other
  // streams half of it does. Far away the window has to stay open.
  const std::uint64_t owed = replies_.owed();
  std::size_t step = 1;
  if (owed > 0) {
    const std::size_t value = replies_.landed() + owed;
    const bool beside =
        server_.round_trip() < kFarAway && server_.gate().limit(Direction::kRead) > 1;
    step = beside ? std::max(value / 2, kLowWaterBytesOfMany)
                  : std::clamp(value / 8, kLowWaterBytesMin, kLowWaterBytesMax);
  }
  stream_->set_receive_low_water(std::clamp<std::size_t>(owed, 1, step));
}

bool Connection::let_go(Work work) {
  const Verb verb = work.batch->options().verb;
  const Command& command = *work.command;
  if (streaming_ && (verb == Verb::kGet || verb == Verb::kSet)) stream_bytes_ -= command.size;
  return held_.command != &command && command.sent_at <= outbox_.sent_total();
}

void Connection::settled(Work work, Status status, Reason why) {
  const Verb verb = work.batch->options().verb;
  const bool withdrawn = status == Status::kCancelled || status == Status::kTimeout;
  std::string early;
  if (!let_go(work) && (verb == Verb::kSet || !withdrawn)) {
    // No reply can be its reply. The buffer of a SET goes back to the caller now, so nothing may
    // be sent from it any more.
    stop_sending();
    if (!withdrawn) {
      status = Status::kServerError;
      early = "the server answered before the command was sent";
      // It may say why, e.g. that no value may be so long.
      if (!why.text.empty()) early.append(": ").append(why.text);
      why = early;
    }
  }
  if (streaming_ && status == Status::kOk && (verb == Verb::kGet || verb == Verb::kSet) &&
      server_.gate().completed(direction_, work.command->size, now_)) {
    server_.wake_for_streams();
  }
  if (status == Status::kUnavailable) server_.suspect();  // CLUSTERDOWN, READONLY, ...
  server_.settle(work, status, why);
}

void Connection::redirected(Work work, std::string_view answer) {
  // Another connection may send it before this one has: then from two places at once.
  if (!let_go(work)) stop_sending();
  server_.redirected(work, answer);
}

void Connection::stop_sending() {
  outbox_.clear();
  held_ = {};
  answered_early_ = true;
}

}  // namespace kvferry::redis
