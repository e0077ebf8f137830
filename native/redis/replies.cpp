#include "redis/replies.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "redis/server_error.hpp"

namespace kvferry::redis {
namespace {

// Reading a header takes a small receive, so that little payload has to be copied behind it.
constexpr std::size_t kHeaderReadBytes = 4 * kKiB;

bool starts_payload(const resp::Token& token) noexcept {
  using resp::Type;
  return token.type == Type::kBulk || token.type == Type::kBulkError ||
         token.type == Type::kVerbatim;
}

}  // namespace

Replies::Replies(ReplySink& sink, std::size_t drain_bytes_max, std::size_t value_bytes_max)
    : sink_(sink),
      drain_bytes_max_(drain_bytes_max),
      value_bytes_max_(value_bytes_max),
      parser_(static_cast<std::int64_t>(value_bytes_max)),
      slots_(std::make_unique<std::array<Work, kInFlightMax>>()),
      call_({}),
      scratch_(std::make_unique_for_overwrite<std::array<std::byte, kScratchBytes>>()) {}

void Replies::expect(Work work) {
  check(!full(), "no more commands are on their way than there are places for");
  slot(tail_++) = work;
}

std::span<const iovec> Replies::plan() noexcept {
  std::size_t count = 0;
  std::uint64_t owed = parser_.payload_remaining();
  const auto plan_piece = [&](std::byte* begin, std::uint64_t size) {
    pieces_[count++] = {begin, static_cast<std::size_t>(size)};
    owed -= size;
    return static_cast<std::size_t>(size);
  };
  planned_frame_ = planned_target_ = 0;
  if (owed > 0 && destination_ == Destination::kFrame) {
    planned_frame_ =
        plan_piece(frame_bytes_.data() + frame_filled_, codec::kFrameSizeBytes - frame_filled_);
  }
  // Behind a frame header the payload goes to its target only if it has the right length; whether
  // it is the right payload is known before the command settles. Where no target was named, the
  // header decides whether there is one.
  if (owed > 0 && (destination_ == Destination::kFrame || destination_ == Destination::kTarget)) {
    const Command& command = *slot(head_).command;
    if (command.size - landed_ == owed && command.data != nullptr) {
      planned_target_ = plan_piece(command.data + landed_, owed);
    }
  }
  if (owed > 0 && destination_ == Destination::kCoded) {
    const MutableBytes space = decoder_.space();
    planned_target_ = plan_piece(space.data(), space.size());
    if (owed > 0) return std::span(pieces_).first(count);  // the rest of it comes there as well
  }
  if (scratch_begin_ == scratch_end_) scratch_begin_ = scratch_end_ = 0;
  std::size_t space = kScratchBytes - scratch_end_;
  const bool large_next =
      in_flight() > 0 && slot(head_) && slot(head_).command->size > 16 * kHeaderReadBytes;
  if (large_next) space = std::min(space, kHeaderReadBytes);
  pieces_[count++] = {scratch_->data() + scratch_end_, space};
  return std::span(pieces_).first(count);
}

bool Replies::received(std::size_t count) {
  gained_ = 0;
  if (planned_frame_ > 0) {
    const std::size_t part = std::min(count, planned_frame_);
    parser_.take_payload(part);
    frame_filled_ += part;
    count -= part;
    if (frame_filled_ == codec::kFrameSizeBytes && !on_frame_header()) return false;
  }
  if (planned_target_ > 0 && count > 0) {
    const std::size_t part = std::min(count, planned_target_);
    parser_.take_payload(part);
    // After a bad frame header the landing is kDrain: these bytes only passed through.
    if (destination_ == Destination::kTarget) {
      note_landed({slot(head_).command->data + landed_, part});
    }
    if (destination_ == Destination::kCoded && !decode(part)) return false;
    count -= part;
  }
  scratch_end_ += count;
  return parse();
}

bool Replies::parse() {
  for (;;) {
    const ByteView input(scratch_->data() + scratch_begin_, scratch_end_ - scratch_begin_);
    if (const std::uint64_t owed = parser_.payload_remaining(); owed > 0) {
      if (input.empty()) break;
      const std::size_t part =
          static_cast<std::size_t>(std::min<std::uint64_t>(owed, input.size()));
      if (!store_payload(input.first(part))) return false;
      continue;
    }
    std::size_t consumed = 0;
    const resp::Token token = parser_.next(input, consumed);
    if (token.type == resp::Type::kNeedMore) break;
    scratch_begin_ += consumed;
    if (!on_token(token)) return false;
  }
  // Keep room for the longest line.
  if (scratch_begin_ > kScratchBytes / 2) {
    std::memmove(scratch_->data(), scratch_->data() + scratch_begin_,
                 scratch_end_ - scratch_begin_);
    scratch_end_ -= scratch_begin_;
    scratch_begin_ = 0;
  }
  return true;
}

bool Replies::store_payload(ByteView bytes) {
  std::size_t used = bytes.size();
  switch (destination_) {
    case Destination::kFrame:
      used = std::min(used, codec::kFrameSizeBytes - frame_filled_);
      std::memcpy(frame_bytes_.data() + frame_filled_, bytes.data(), used);
      frame_filled_ += used;
      break;
    case Destination::kTarget: {
      std::byte* target = slot(head_).command->data + landed_;
      std::memcpy(target, bytes.data(), used);
      note_landed({target, used});
      break;
    }
    case Destination::kCoded: {
      const MutableBytes space = decoder_.space();
      used = std::min(used, space.size());
      std::memcpy(space.data(), bytes.data(), used);
      break;
    }
    case Destination::kText:
      text_.append(as_text(bytes.first(std::min(used, kErrorTextMax - text_.size()))));
      break;
    case Destination::kReply:
      call_.add_payload(as_text(bytes));
      break;
    case Destination::kDrain:
      break;
  }
  scratch_begin_ += used;
  parser_.take_payload(used);
  const bool frame_done =
      destination_ == Destination::kFrame && frame_filled_ == codec::kFrameSizeBytes;
  if (destination_ == Destination::kCoded) return decode(used);
  return !frame_done || on_frame_header();
}

// The next bytes of a coded payload are where the decoder wanted them. What is wrong with them
// concerns this value alone: the rest of it is read away.
bool Replies::decode(std::size_t count) {
  const Work work = slot(head_);
  const bool sound = decoder_.received(count);
  const std::size_t fresh = decoder_.filled() - landed_;
  gained_ += static_cast<std::ptrdiff_t>(fresh) - static_cast<std::ptrdiff_t>(count);
  note_landed({work.command->data + landed_, fresh});
  if (sound) return true;
  destination_ = Destination::kDrain;
  outcome_ = Status::kCorrupt;
  work.command->fault = codec::FrameFault::kPayloadChecksum;
  why_ = codec::name(work.command->fault);
  return drain(parser_.payload_remaining());
}

void Replies::note_landed(ByteView piece) noexcept {
  landed_ += piece.size();
  if (slot(head_).batch->options().framed) checksum_.update(piece);
}

bool Replies::on_token(const resp::Token& token) {
  using resp::Type;
  if (token.type == Type::kBad) return poison(token.text);
  if (in_flight() > 0 && !token.in_extra && !is_error(token)) {
    if (released_calls_.test(head_ % kInFlightMax)) return on_released_call(token);
    const Work work = slot(head_);
    if (work && work.batch->options().verb == Verb::kCall) return on_call(token);
  }
  if ((token.in_extra || token.type != Type::kBulk) &&
      parser_.payload_remaining() > drain_bytes_max_) {
    return poison("an unwanted bulk is larger than the drain limit");
  }
  if (token.in_extra) {
    if (starts_payload(token)) destination_ = Destination::kDrain;
    return true;
  }
  if (in_flight() == 0) {
    return poison(token.type == Type::kError ? token.text : "a reply that nobody asked for");
  }
  switch (token.type) {
    case Type::kPush:
    case Type::kAttribute:
      return true;
    case Type::kBulk:
      return on_bulk(static_cast<std::uint64_t>(token.integer));
    case Type::kBulkError:
      destination_ = Destination::kText;
      text_.clear();
      return true;
    case Type::kPayloadEnd:
      return on_payload_end();
    case Type::kError:
      return on_server_error(token.text);
    case Type::kSimple:
    case Type::kInteger:
    case Type::kNull:
      return on_scalar(token);
    default:
      return surprise();
  }
}

bool Replies::on_bulk(std::uint64_t length) {
  destination_ = Destination::kDrain;
  outcome_ = Status::kOk;
  why_ = {};
  const Work work = slot(head_);
  if (!work) return drain(length);  // a PING, or a command that was released
  if (work.batch->options().verb != Verb::kGet) return surprise();
  landed_ = 0;
  if (work.batch->options().framed) {
    if (length < codec::kFrameSizeBytes) {
      outcome_ = Status::kCorrupt;
      why_ = "a value without a frame";
      work.command->fault = codec::FrameFault::kMagic;
      return true;
    }
    destination_ = Destination::kFrame;
    frame_filled_ = 0;
    checksum_.reset();
    return true;
  }
  work.command->found = length;
  if (length != work.command->size) {
    outcome_ = Status::kSizeMismatch;
    return drain(length);
  }
  destination_ = Destination::kTarget;
  return true;
}

bool Replies::on_frame_header() {
  const Work work = slot(head_);
  const auto stripes = work.batch->stripes(*work.command);
  const codec::FrameExpectation expected{
      .identity = work.batch->options().identity,
      .key_digest = codec::xxh3_64(as_bytes(work.batch->key(stripes.back()))),
      .payload_size_bytes = work.command->size,
      .original_size_bytes = work.batch->value_size(*work.command),
      .stripe_index = work.command->stripe,
      .stripe_count = static_cast<std::uint16_t>(stripes.size()),
      .decodes = true};
  const std::uint64_t payload = parser_.payload_remaining();
  codec::FrameFault fault = codec::decode_frame(frame_bytes_, frame_);
  if (fault == codec::FrameFault::kNone && frame_.payload_size_bytes != payload) {
    fault = codec::FrameFault::kShape;
  }
  if (fault == codec::FrameFault::kNone) {
    work.command->found = payload;
    work.command->generation = frame_.generation;
    fault = codec::check_frame(frame_, expected);
    // The whole value's length, told once.
    if (fault == codec::FrameFault::kSize) {
      work.command->found = work.command->stripe == 0 ? frame_.original_size_bytes : 0;
    }
  }
  if (fault == codec::FrameFault::kNone) {
    if (work.batch->assign_buffer(*work.command)) {
      destination_ = Destination::kTarget;
      if (frame_.codec != codec::Codec::kRaw) {
        destination_ = Destination::kCoded;
        work.command->found = work.command->size;
        decoder_.start({work.command->data, work.command->size}, payload);
      }
      return true;
    }
    destination_ = Destination::kDrain;
    outcome_ = Status::kCancelled;
    return drain(payload);
  }
  work.command->fault = fault;
  if (fault == codec::FrameFault::kKey || fault == codec::FrameFault::kStripe) {
    // A sound frame that answers another command: every reply behind it is out of step as well.
    settle_front(Status::kCorrupt, codec::name(fault));
    return poison("a value of another key");
  }
  destination_ = Destination::kDrain;
  outcome_ = fault == codec::FrameFault::kSize ? Status::kSizeMismatch : Status::kCorrupt;
  why_ = codec::name(fault);
  return drain(payload);
}

bool Replies::on_payload_end() {
  if (destination_ == Destination::kText) return on_server_error(text_);
  const Work work = slot(head_);
  const bool landed = destination_ == Destination::kTarget || destination_ == Destination::kCoded;
  if (work && landed && work.batch->options().framed &&
      (landed_ != work.command->size || checksum_.digest() != frame_.payload_checksum)) {
    outcome_ = Status::kCorrupt;
    work.command->fault = codec::FrameFault::kPayloadChecksum;
    why_ = codec::name(work.command->fault);
  }
  settle_front(outcome_, why_);
  return true;
}

bool Replies::on_scalar(const resp::Token& token) {
  const Work work = slot(head_);
  if (!work) {
    settle_front(Status::kOk);
    return true;
  }
  switch (work.batch->options().verb) {
    case Verb::kGet:
      if (token.type != resp::Type::kNull) return surprise();
      settle_front(Status::kMiss);
      return true;
    case Verb::kSet:
      if (token.type != resp::Type::kSimple || token.text != "OK") return surprise();
      work.command->found = work.command->size;
      settle_front(Status::kOk);
      return true;
    case Verb::kExists:
    case Verb::kTouch:
    case Verb::kDelete:
      if (token.type != resp::Type::kInteger) return surprise();
      settle_front(token.integer > 0 ? Status::kOk : Status::kMiss);
      return true;
    case Verb::kPing:
      if (token.type != resp::Type::kSimple) return surprise();
      settle_front(Status::kOk);
      return true;
    case Verb::kCall:  // see on_call()
      break;
  }
  return surprise();
}

bool Replies::on_call(const resp::Token& token) {
  if (starts_payload(token)) destination_ = Destination::kReply;
  const Work work = slot(head_);
  switch (call_.take(token, work.batch->reply(*work.command))) {
    case resp::ValueBuilder::State::kNeedMore:
      return true;
    case resp::ValueBuilder::State::kValue:
      settle_front(Status::kOk);
      return true;
    case resp::ValueBuilder::State::kBad:
      break;
  }
  const std::string_view why = call_.error();
  settle_front(Status::kServerError, why);
  return poison(why);
}

bool Replies::is_error(const resp::Token& token) const noexcept {
  using resp::Type;
  if (token.type == Type::kPayloadEnd) return destination_ == Destination::kText;
  return token.depth == 0 && (token.type == Type::kError || token.type == Type::kBulkError);
}

bool Replies::on_released_call(const resp::Token& token) {
  outcome_ = Status::kOk;
  why_ = {};
  if (starts_payload(token)) return drain(static_cast<std::uint64_t>(token.integer));
  if (token.ends_reply) settle_front(Status::kOk);
  return true;
}

bool Replies::on_server_error(std::string_view text) {
  const ServerErrorKind kind = classify(text);
  wants_reconnect_ = wants_reconnect_ || kind == ServerErrorKind::kReconnect;
  const bool released = released_.test(head_ % kInFlightMax);
  if (!slot(head_) && !released && text.starts_with("WRONGPASS")) {
    // Its text may repeat secrets.
    return poison("the server refuses the new credentials: WRONGPASS", Errc::kAuth);
  }
  if (kind == ServerErrorKind::kRedirect) {
    if (const Work work = take_front()) sink_.redirected(work, text);
    return true;
  }
  if (const Work work = slot(head_); work && work.batch->options().framed &&
                                     work.batch->options().verb == Verb::kGet &&
                                     text.starts_with("WRONGTYPE")) {
    work.command->fault = codec::FrameFault::kMagic;  // a list, a hash: no value of ours
    settle_front(Status::kCorrupt, "a key of another type");
    return true;
  }
  const bool of_command = kind == ServerErrorKind::kCommand || kind == ServerErrorKind::kUnknown ||
                          text.starts_with("NOPERM");
  const std::string why = printable(text);
  settle_front(of_command ? Status::kServerError : Status::kUnavailable, {why, error_code(text)});
  return true;
}

bool Replies::surprise() {
  settle_front(Status::kServerError, "the server sent a reply of an unexpected type");
  return poison("a reply of an unexpected type");
}

bool Replies::drain(std::uint64_t length) {
  if (length <= drain_bytes_max_) return true;
  settle_front(outcome_, why_);
  declined_ = true;
  return poison("an unwanted value is larger than the drain limit");
}

bool Replies::release(Nanos now) {
  std::uint64_t owed = 0;
  for (std::size_t index = head_; index != tail_; ++index) {
    Work& work = slot(index);
    if (!work) continue;
    const bool cancelled = work.batch->cancelled();
    if (!cancelled && work.batch->options().deadline > now) continue;
    if (work.batch->options().verb == Verb::kGet) owed += work.command->size;
    if (index == head_) {
      destination_ = Destination::kDrain;
      call_.reset();
    }
    if (work.batch->options().verb == Verb::kCall) released_calls_.set(index % kInFlightMax);
    released_.set(index % kInFlightMax);
    sink_.settled(std::exchange(work, {}), cancelled ? Status::kCancelled : Status::kTimeout, {});
  }
  return owed <= drain_bytes_max_;
}

Nanos Replies::next_deadline() const noexcept {
  Nanos earliest = kNever;
  for (std::size_t index = head_; index != tail_; ++index) {
    if (const Work& work = slot(index)) {
      earliest = std::min(earliest, work.batch->options().deadline);
    }
  }
  return earliest;
}

Work Replies::take_front() {
  check(in_flight() > 0, "a reply is taken only where one is owed");
  released_.reset(head_ % kInFlightMax);
  released_calls_.reset(head_ % kInFlightMax);
  destination_ = Destination::kDrain;
  return slot(head_++);
}

void Replies::settle_front(Status status, Reason why) {
  if (const Work work = take_front()) sink_.settled(work, status, why);
}

bool Replies::poison(std::string_view why, Errc code) {
  error_ = {code, printable(why)};
  return false;
}

void Replies::reset() noexcept {
  parser_ = resp::Parser(static_cast<std::int64_t>(value_bytes_max_));
  head_ = tail_ = 0;
  released_.reset();
  released_calls_.reset();
  scratch_begin_ = scratch_end_ = 0;
  destination_ = Destination::kDrain;
  call_ = resp::ValueBuilder({});
  wants_reconnect_ = declined_ = false;
}

}  // namespace kvferry::redis
