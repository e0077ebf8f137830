#include "codec/coded.hpp"

#include <algorithm>
#include <cstring>

#include "codec/checksum.hpp"
#include "codec/codecs.hpp"
#include "codec/little_endian.hpp"

namespace kvferry::codec {
namespace {

constexpr std::size_t kHeadBytes = 4;
constexpr std::uint32_t kLengthMask = 0xff'ffff;

std::size_t blocks_of(std::size_t content_size_bytes) noexcept {
  return content_size_bytes / kCodedBlockBytes + (content_size_bytes % kCodedBlockBytes != 0);
}

void write_head(Method method, std::size_t length, std::byte* to) noexcept {
  store_le(static_cast<std::uint32_t>(length) | static_cast<std::uint32_t>(method) << 24, to);
}

// None: the block is plain, or of a method that we do not know.
const BlockFunctions* functions_of(Method method) noexcept {
  const auto number = static_cast<std::size_t>(method);
  return number >= 1 && number <= kMethods.size() ? &kMethods[number - 1] : nullptr;
}

// Returns the length with its head.
std::size_t encode_block(Method method, ByteView content, MutableBytes out) noexcept {
  const BlockFunctions* functions = functions_of(method);
  if (functions != nullptr && content.size() % functions->number_bytes != 0) {
    method = functions->otherwise;
    functions = functions_of(method);
  }
  const MutableBytes body = out.subspan(kHeadBytes);
  const std::size_t length = functions != nullptr ? functions->encode(content, body) : 0;
  if (length > 0) {
    write_head(method, length, out.data());
    return kHeadBytes + length;
  }
  write_head(Method::kPlain, content.size(), out.data());
  std::memcpy(body.data(), content.data(), content.size());
  return kHeadBytes + content.size();
}

bool decode_block(Method method, ByteView body, MutableBytes content) noexcept {
  if (method == Method::kPlain) {
    if (body.size() != content.size()) return false;
    std::memcpy(content.data(), body.data(), body.size());
    return true;
  }
  const BlockFunctions* const functions = functions_of(method);
  return functions != nullptr && functions->decode(body, content);
}

// None: we do not know that one.
const NamedCodec* named(Codec codec) noexcept {
  const auto number = static_cast<std::size_t>(codec);
  return number < kCodecs.size() ? &kCodecs[number] : nullptr;
}

Method method_for(Codec codec, ByteView content) noexcept {
  const NamedCodec* const known = named(codec);
  return known != nullptr ? known->method(content) : Method::kPlain;
}

bool pays(std::size_t size, ByteView content) noexcept { return size <= content.size() / 16 * 15; }

}  // namespace

std::size_t coded_size_max(std::size_t content_size_bytes) noexcept {
  return content_size_bytes + blocks_of(content_size_bytes) * kHeadBytes;
}

std::size_t encode_stripe(Codec codec, ByteView content, MutableBytes out) noexcept {
  const Method method = method_for(codec, content);
  if (method == Method::kPlain) return 0;
  std::size_t size = 0;
  for (std::size_t at = 0; at < content.size(); at += kCodedBlockBytes) {
    const ByteView block = content.subspan(at, std::min(kCodedBlockBytes, content.size() - at));
    size += encode_block(method, block, out.subspan(size));
  }
  return pays(size, content) ? size : 0;
}

std::uint64_t content_checksum(Codec codec, ByteView content) {
  const NamedCodec* const known = named(codec);
  if (known == nullptr || known->dtype.empty()) return xxh3_64(content);
  const Method method = method_for(codec, content);
  const std::size_t memory_size = 2 * kCodedBlockBytes + kHeadBytes;
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(memory_size);
  const MutableBytes coded(memory.get(), kCodedBlockBytes + kHeadBytes);
  const MutableBytes decoded(memory.get() + coded.size(), kCodedBlockBytes);
  std::size_t size = 0;
  Xxh3 sum;
  for (std::size_t at = 0; at < content.size(); at += kCodedBlockBytes) {
    const ByteView block = content.subspan(at, std::min(kCodedBlockBytes, content.size() - at));
    const std::size_t length = encode_block(method, block, coded);
    const auto used = static_cast<Method>(load_le<std::uint32_t>(coded.data()) >> 24);
    // What was just encoded decodes.
    (void)decode_block(used, coded.first(length).subspan(kHeadBytes), decoded.first(block.size()));
    sum.update(decoded.first(block.size()));
    size += length;
  }
  return pays(size, content) ? sum.digest() : xxh3_64(content);
}

void StripeDecoder::start(MutableBytes content, std::size_t payload_size_bytes) {
  if (buffer_ == nullptr) buffer_ = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
  buffered_ = 0;
  content_ = content;
  filled_ = 0;
  missing_ = payload_size_bytes;
}

MutableBytes StripeDecoder::space() noexcept {
  return {buffer_.get() + buffered_, std::min(kBufferBytes - buffered_, missing_)};
}

bool StripeDecoder::received(std::size_t count) noexcept {
  buffered_ += count;
  missing_ -= count;
  std::size_t used = 0;
  while (buffered_ - used >= kHeadBytes) {
    const std::byte* const head = buffer_.get() + used;
    const auto word = load_le<std::uint32_t>(head);
    const std::size_t length = word & kLengthMask;
    const MutableBytes block =
        content_.subspan(filled_, std::min(kCodedBlockBytes, content_.size() - filled_));
    // A block that is no shorter is there as it is; nothing comes behind the last.
    if (block.empty() || length > block.size()) return false;
    if (buffered_ - used - kHeadBytes < length) break;
    const ByteView body(head + kHeadBytes, length);
    if (!decode_block(static_cast<Method>(word >> 24), body, block)) return false;
    filled_ += block.size();
    used += kHeadBytes + length;
  }
  std::memmove(buffer_.get(), buffer_.get() + used, buffered_ - used);
  buffered_ -= used;
  return missing_ > 0 || (buffered_ == 0 && filled_ == content_.size());
}

}  // namespace kvferry::codec
