#include "redis/encode.hpp"

#include <vector>

#include "codec/checksum.hpp"
#include "codec/coded.hpp"
#include "codec/frame.hpp"
#include "resp/writer.hpp"

namespace kvferry::redis {
namespace {

void stamp_stripes(Batch& batch, Command& command) {
  const std::lock_guard lock(batch.stamp_mutex(command));
  if (command.stamped) return;
  const auto stripes = batch.stripes(command);
  std::vector<std::uint64_t> checksums(stripes.size());
  for (Command& stripe : stripes) {
    stripe.checksum = codec::content_checksum(batch.options().codec, {stripe.data, stripe.size});
    checksums[stripe.stripe] = stripe.checksum;
  }
  const std::uint64_t generation = codec::generation_of(checksums);
  for (Command& stripe : stripes) {
    stripe.generation = generation;
    stripe.stamped = true;
  }
}

// Bytes of the payload; those of an encoded one are held by the outbox.
std::size_t encode_payload(const Batch& batch, const Command& command, Outbox& outbox) {
  const codec::Codec codec = batch.options().codec;
  outbox.coded().hold(0);
  if (codec == codec::Codec::kRaw || !batch.options().framed) return command.size;
  const MutableBytes space = outbox.coded().space(codec::coded_size_max(command.size));
  const std::size_t size = codec::encode_stripe(codec, {command.data, command.size}, space);
  outbox.coded().hold(size);
  return size > 0 ? size : command.size;
}

void write_frame(Batch& batch, Command& command, Outbox& outbox, std::size_t payload_size_bytes) {
  stamp_stripes(batch, command);
  const auto stripes = batch.stripes(command);
  codec::encode_frame(
      {.payload_size_bytes = payload_size_bytes,
       .original_size_bytes = batch.value_size(command),
       .payload_checksum = command.checksum,
       .identity = batch.options().identity,
       .key_digest = codec::xxh3_64(as_bytes(batch.key(stripes.back()))),
       .generation = command.generation,
       .stripe_index = command.stripe,
       .stripe_count = static_cast<std::uint16_t>(stripes.size()),
       .codec = payload_size_bytes < command.size ? batch.options().codec : codec::Codec::kRaw},
      outbox.text_space().first<codec::kFrameSizeBytes>());
  outbox.take_text(codec::kFrameSizeBytes);
}

std::string_view word(Verb verb) noexcept {
  switch (verb) {
    case Verb::kGet:
      return "GET";
    case Verb::kSet:
      return "SET";
    case Verb::kExists:
      return "EXISTS";
    case Verb::kTouch:
      return "TOUCH";
    case Verb::kDelete:
      return "DEL";
    case Verb::kPing:
    case Verb::kCall:
      break;
  }
  return "PING";
}

}  // namespace

void encode(Work work, Outbox& outbox) {
  const Verb verb = work.batch->options().verb;
  if (verb == Verb::kSet) {
    encode_set_head(work, outbox);
    encode_set_body(work, outbox);
    return;
  }
  if (verb == Verb::kCall) {
    outbox.add_payload(as_bytes(work.batch->request(*work.command)));
    work.command->sent_at = outbox.added_total();
    return;
  }
  resp::Writer writer(outbox.text_space());
  writer.command(verb == Verb::kPing ? 1 : 2).bulk(word(verb));
  if (verb != Verb::kPing) writer.bulk(work.batch->key(*work.command));
  outbox.take_text(writer.written().size());
  work.command->sent_at = outbox.added_total();
}

void encode_set_head(Work work, Outbox& outbox) {
  Batch& batch = *work.batch;
  Command& command = *work.command;
  const bool framed = batch.options().framed;
  const std::size_t size = encode_payload(batch, command, outbox);
  resp::Writer head(outbox.text_space());
  head.command(batch.options().ttl_ms > 0 ? 5 : 3).bulk("SET").bulk(batch.key(command));
  head.bulk_header(size + (framed ? codec::kFrameSizeBytes : 0));
  outbox.take_text(head.written().size());
  if (framed) write_frame(batch, command, outbox, size);
}

void encode_set_body(Work work, Outbox& outbox) {
  if (!outbox.add_held()) outbox.add_payload({work.command->data, work.command->size});
  resp::Writer tail(outbox.text_space());
  tail.end_payload();
  const std::int64_t ttl_ms = work.batch->options().ttl_ms;
  if (ttl_ms > 0) tail.bulk("PX").number(ttl_ms);
  outbox.take_text(tail.written().size());
  work.command->sent_at = outbox.added_total();
}

void encode_auth(std::string_view user, std::string_view password, Outbox& outbox) {
  resp::Writer writer(outbox.text_space());
  writer.command(user.empty() ? 2 : 3).bulk("AUTH");
  if (!user.empty()) writer.bulk(user);
  outbox.take_text(writer.bulk(password).written().size());
}

}  // namespace kvferry::redis
