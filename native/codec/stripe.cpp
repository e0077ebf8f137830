#include "codec/stripe.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "codec/checksum.hpp"
#include "codec/little_endian.hpp"

namespace kvferry::codec {
namespace {

constexpr std::size_t kStripeUnitBytes = 4 * kKiB;

constexpr std::size_t divide_up(std::size_t a, std::size_t b) { return a / b + (a % b != 0); }

}  // namespace

StripePlan stripe_plan(std::size_t value_size_bytes) noexcept {
  if (value_size_bytes > kValueSizeBytesMax) return {value_size_bytes, 0, 0};
  if (value_size_bytes <= kStripeSizeBytesMax) {
    return {value_size_bytes, value_size_bytes, 1};
  }
  // Rounding up to the unit never empties the last stripe: a stripe is at most 4 MiB, and count-1
  // stripes of 4 MiB are less than the value.
  const std::size_t count = divide_up(value_size_bytes, kStripeSizeBytesMax);
  const std::size_t stripe_size_bytes =
      divide_up(divide_up(value_size_bytes, count), kStripeUnitBytes) * kStripeUnitBytes;
  return {value_size_bytes, stripe_size_bytes, static_cast<std::uint16_t>(count)};
}

StripeExtent stripe_extent(const StripePlan& plan, std::size_t index) noexcept {
  const std::size_t offset = index * plan.stripe_size_bytes;
  return {offset, std::min(plan.stripe_size_bytes, plan.value_size_bytes - offset)};
}

void append_stripe_suffix(std::string& key, std::size_t index) {
  if (index == 0) return;
  std::array<char, 21> text{'#'};
  const auto end = std::to_chars(text.data() + 1, text.data() + text.size(), index).ptr;
  key.append(text.data(), end);
}

std::uint64_t generation_of(std::span<const std::uint64_t> checksums) noexcept {
  Xxh3 hash;
  for (const std::uint64_t checksum : checksums) {
    std::array<std::byte, 8> bytes;
    store_le(checksum, bytes.data());
    hash.update(bytes);
  }
  return hash.digest();
}

}  // namespace kvferry::codec
