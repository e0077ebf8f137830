// codec::StripeDecoder: any bytes are refused or decode to something, the same however they are
// cut, and what was encoded comes back.
//
// Input: two bytes that say how long the content is, then the payload.

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "codec/checksum.hpp"
#include "codec/coded.hpp"
#include "codec/split12.hpp"
#include "fuzz/fuzz.hpp"

namespace {

using namespace kvferry;
using fuzz::require;

// The content; nothing: the payload was refused. Its memory ends where the content does.
std::optional<std::vector<std::byte>> decode(ByteView payload, std::size_t size,
                                             fuzz::Pieces pieces) {
  std::vector<std::byte> content(size);
  codec::StripeDecoder decoder;
  decoder.start(content, payload.size());
  while (!payload.empty()) {
    const MutableBytes space = decoder.space();
    require(!space.empty(), "no space for the next byte");
    const std::size_t part = std::min({pieces.next(), space.size(), payload.size()});
    std::ranges::copy(payload.first(part), space.begin());
    payload = payload.subspan(part);
    if (!decoder.received(part)) return std::nullopt;
  }
  if (decoder.filled() != size) return std::nullopt;
  return content;
}

void check_round_trip(codec::Codec codec, ByteView bytes) {
  // As they are, and turned into numbers of one scale.
  std::vector<std::byte> content(bytes.begin(), bytes.end());
  for (const bool scaled : {false, true}) {
    for (std::size_t at = 1; scaled && at < content.size(); at += 2) {
      content[at] = (content[at] & std::byte{0x83}) | std::byte{0x3c};
    }
    std::vector<std::byte> payload(codec::coded_size_max(content.size()));
    payload.resize(codec::encode_stripe(codec, content, payload));
    if (payload.empty()) continue;
    require(payload.size() < content.size(), "an encoded value is no shorter");
    const auto back =
        decode(payload, content.size(), fuzz::Pieces(fuzz::Cutting::kVaried, as_text(bytes)));
    require(back == content, "what was encoded does not come back");
  }
}

// What is left of the numbers has the checksum that the writer says, and stays as it is.
void check_loss(codec::Codec codec, ByteView content) {
  std::vector<std::byte> payload(codec::coded_size_max(content.size()));
  payload.resize(codec::encode_stripe(codec, content, payload));
  const auto sum = codec::content_checksum(codec, content);
  if (payload.empty()) {
    require(sum == codec::xxh3_64(content), "content that is sent as it is has another checksum");
    return;
  }
  const auto left =
      decode(payload, content.size(), fuzz::Pieces(fuzz::Cutting::kVaried, as_text(content)));
  require(left.has_value() && codec::xxh3_64(*left) == sum, "a reader gets something else");
  require(codec::content_checksum(codec, *left) == sum, "more is lost the second time");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView input{reinterpret_cast<const std::byte*>(data), size};
  check_round_trip(codec::Codec::kSplit12, input);
  check_round_trip(codec::Codec::kZstd, input);
  for (const auto codec :
       {codec::Codec::kFp8Bf16, codec::Codec::kFp8Fp16, codec::Codec::kFp8Fp32}) {
    check_loss(codec, input);
  }
  if (size < 2) return 0;
  const std::size_t length = static_cast<std::size_t>(data[0]) << 8 | data[1];
  const ByteView payload = input.subspan(2);
  const auto whole = decode(payload, length, fuzz::Pieces(fuzz::Cutting::kWhole, as_text(payload)));
  for (const fuzz::Cutting cutting : {fuzz::Cutting::kBytes, fuzz::Cutting::kVaried}) {
    const auto cut = decode(payload, length, fuzz::Pieces(cutting, as_text(payload)));
    require(cut == whole, "how a payload is cut changes what it is");
  }
  return 0;
}
