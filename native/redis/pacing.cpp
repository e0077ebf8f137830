#include "redis/pacing.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "redis/encode.hpp"
#include "resp/writer.hpp"

namespace kvferry::redis {
namespace {

constexpr std::size_t kReadWindowBytesMin = 512 * kKiB;
constexpr std::size_t kReadWindowBytesMax = 2 * kMiB;
constexpr std::size_t kWindowBytesMax = 64 * kMiB;
constexpr std::size_t kWriteWindowBytes = Outbox::kLargeBytes + 1;  // less: one more follows
constexpr double kRateGuessBytesPerNano = 4.0;  // 4 GB/s: what fills a round trip
constexpr int kReadsBeforeWrite = 16;
constexpr std::size_t kCodedBytesMax = 8 * kMiB;  // unsent, of a connection

std::size_t bytes_in(Nanos round_trip) noexcept {
  return static_cast<std::size_t>(static_cast<double>(round_trip) * kRateGuessBytesPerNano);
}

}  // namespace

bool Pacing::pump(Nanos now) {
  up_ = true;
  if (role_ == Role::kSmall || !server_.small_lane_up()) pump_small(now);
  if (role_ == Role::kData && up_) pump_data(now);
  return up_;
}

bool Pacing::answered(Work work) {
  const Verb verb = work.batch->options().verb;
  const Command& command = *work.command;
  if (streaming_ && (verb == Verb::kGet || verb == Verb::kSet)) {
    stream_bytes_ -= command.size;
    --stream_values_;
    server_.gate().remove_values(direction_);
  }
  return held_.command != &command && command.sent_at <= outbox_.sent_total();
}

void Pacing::completed(Work work, Nanos now) {
  const Verb verb = work.batch->options().verb;
  if (streaming_ && (verb == Verb::kGet || verb == Verb::kSet) &&
      server_.gate().completed(direction_, work.command->size, now)) {
    server_.wake_for_streams();
  }
}

void Pacing::stop_sending() {
  outbox_.clear();
  held_ = {};
}

void Pacing::drop() {
  if (role_ == Role::kData) server_.gate().remove_sleeper(this);
  stop_sending();
}

void Pacing::pump_small(Nanos now) {
  // Nor between the head of a SET and its value, where it would be taken for a part of it.
  if (role_ == Role::kData && (held_ || replies_.overdue() > 0)) return;
  for (;;) {
    while (take(Lane::kSmall, now)) {
    }
    if (outbox_.room_for_command()) return;
    // What found no room goes behind what has left now, instead of behind its answer.
    if (!send(now) || !outbox_.empty()) return;
  }
}

void Pacing::pump_data(Nanos now) {
  if (streaming_ && stream_bytes_ == 0 && replies_.in_flight() == replies_.overdue() &&
      outbox_.empty()) {
    streaming_ = false;  // perhaps for a moment, so nobody is told
    server_.gate().leave(direction_, now);
  }
  if (replies_.overdue() > 0) return pass_on();  // others are sooner
  if (!streaming_) start_stream(now);
  if (!streaming_) return;
  const Lane lane = direction_ == Direction::kWrite ? Lane::kWrite : Lane::kRead;
  const std::size_t limit = window(direction_);
  if (held_ && replies_.in_flight() == 1) encode_set_body(std::exchange(held_, {}), outbox_);
  const std::size_t most = share(lane);
  const bool yields = server_.gate().over_limit(direction_, now);
  while (!held_ && !yields) {
    if (stream_bytes_ - replies_.landed() >= limit && stream_bytes_ > 0) break;
    if (stream_values_ >= most) break;
    if (!take(lane, now)) break;
    // What is encoded is sent while the next value is, and takes little memory meanwhile.
    if (outbox_.coded().unsent_bytes() == 0) continue;
    if (!send(now)) return;
    if (outbox_.coded().unsent_bytes() > kCodedBytesMax) break;
  }
  if (direction_ == Direction::kWrite && !yields) {
    // The server has something to do while the next value is read for its checksum.
    if (!outbox_.empty() && !send(now)) return;
    take_head_early(now);
  }
  if (replies_.in_flight() > 0 || !outbox_.empty()) return;
  if (!paused_) server_.gate().add_sleeper(this, worker_);
  leave_stream(now);
}

void Pacing::start_stream(Nanos now) {
  if (paused_) return pass_on();
  server_.gate().add_sleeper(this, worker_);
  // Reads go first, because an engine waits for them; writes get their turn all the same.
  const bool write_first = reads_in_a_row_ >= kReadsBeforeWrite;
  for (const bool write : {write_first, !write_first}) {
    const Lane lane = write ? Lane::kWrite : Lane::kRead;
    const Direction direction = write ? Direction::kWrite : Direction::kRead;
    if (!server_.queue().has_work(lane) || !server_.gate().try_enter(direction, now)) continue;
    server_.gate().remove_sleeper(this);
    streaming_ = true;
    check(stream_values_ == 0, "what it carried is counted");
    stream_bytes_ = 0;
    reads_in_a_row_ = write ? 0 : reads_in_a_row_ + 1;
    // Where it comes from the other direction, it has left a place there.
    if (std::exchange(direction_, direction) != direction) server_.wake_for_streams();
    return;
  }
}

void Pacing::pass_on() {
  if (role_ != Role::kData) return;
  server_.gate().remove_sleeper(this);
  server_.wake_for_streams();
}

// A server that has read the head of a large SET before its payload arrives receives the payload
// where it will stay, instead of moving what came along with the head (docs/decisions/0002).
void Pacing::take_head_early(Nanos now) {
  if (paused_ || held_ || replies_.in_flight() != 1 || !outbox_.room_for_command()) return;
  // Of a smaller value there is less to move than a head of its own costs.
  if (stream_bytes_ < window(Direction::kWrite)) return;
  // Near the end of the work another connection may be free sooner.
  if (server_.queue().waiting() <= server_.config().connections) return;
  const Work work = server_.queue().pull(Lane::kWrite);
  if (!work || !accept(work, now)) return;
  put_asking(work);
  replies_.expect(work);
  encode_set_head(work, outbox_);
  held_ = work;
  carries(work);
}

bool Pacing::send(Nanos now) {
  up_ = sink_.send(now);
  return up_;
}

bool Pacing::take(Lane lane, Nanos now) {
  if (paused_ || replies_.room() < 2 || !outbox_.room_for_command()) return false;
  const Work work = server_.queue().pull(lane);
  if (!work) return false;
  if (!accept(work, now)) return true;
  put(work);
  if (lane == Lane::kSmall) {
    server_.gate().note_small(now);
  } else {
    carries(work);
  }
  return true;
}

void Pacing::carries(Work work) {
  stream_bytes_ += work.command->size;
  ++stream_values_;
  server_.gate().add_value(direction_);
}

// It is expected first: whoever has no memory to encode it gives back what is expected.
void Pacing::put(Work work) {
  const bool first = !busy();
  put_asking(work);
  replies_.expect(work);
  encode(work, outbox_);
  if (first && work.batch->options().verb == Verb::kSet) liveness_.ends(work.command->sent_at);
}

// A node that is importing the command's slot serves it to those who ask for it like this.
void Pacing::put_asking(Work work) {
  if (!std::exchange(work.command->asking, false)) return;
  resp::Writer writer(outbox_.text_space());
  outbox_.take_text(writer.command(1).bulk("ASKING").written().size());
  replies_.expect({});
}

bool Pacing::accept(Work work, Nanos now) {
  const Nanos deadline = work.batch->options().deadline;
  const Status withdrawn =
      deadline <= now ? Status::kTimeout : work.batch->withdrawn(*work.command);
  if (withdrawn != Status::kPending) {
    server_.settle(work, withdrawn, {});
    return false;
  }
  // A SET is answered when its value is there: put() says when that is.
  if (!busy()) liveness_.began(now, work.batch->options().verb != Verb::kSet);
  liveness_.accepted(deadline);
  return true;
}

std::size_t Pacing::window(Direction direction) const noexcept {
  if (server_.config().window_bytes > 0) return server_.config().window_bytes;
  // A server reads one large value at a time best. The next that it sends is asked for when the
  // first bytes of one have come, or 2 MiB before its end: a server that pauses between values is
  // slow to begin anew. Far away, what a round trip holds at full speed has to be in flight as
  // well.
  const std::size_t least = direction == Direction::kWrite
                                ? kWriteWindowBytes
                                : std::clamp(replies_.landed() + replies_.owed(),
                                             kReadWindowBytesMin, kReadWindowBytesMax);
  const Nanos round_trip = server_.round_trip();
  if (round_trip < kFarAway) return least;
  return std::min(least + bytes_in(round_trip), kWindowBytesMax);
}

// TCP begins with a few segments on each connection, and again where one was idle; what it sends
// ahead of an answer is bounded too. So values that go over all connections need fewer round trips.
std::size_t Pacing::share(Lane lane) const {
  if (server_.round_trip() < kFarAway) return SIZE_MAX;
  const auto up = static_cast<std::size_t>(std::max(1, server_.connections_up()));
  const std::size_t all = server_.gate().values(direction_) + server_.queue().waiting(lane);
  return (all + up - 1) / up;
}

void Pacing::leave_stream(Nanos now) {
  stream_bytes_ = 0;
  server_.gate().remove_values(direction_, std::exchange(stream_values_, 0));
  if (!std::exchange(streaming_, false)) return;
  server_.gate().leave(direction_, now);
  server_.wake_for_streams();
}

}  // namespace kvferry::redis
