#pragma once
// Stripes: how a value that is larger than one server value should be becomes several.
//
// The plan follows from the value's length alone, so a reader that knows the length asks for all
// stripes at once. Writers send stripes 1..n-1 first and stripe 0 last; readers take a value only
// when all its stripes carry one generation. Format and reasons: docs/formats/frame.md.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.hpp"

namespace kvferry::codec {

inline constexpr std::size_t kStripeSizeBytesMax = 4 * kMiB;  // of payload
inline constexpr std::size_t kStripesCountMax = 65535;
inline constexpr std::size_t kValueSizeBytesMax = kStripesCountMax * kStripeSizeBytesMax;

// Stripes 0..count-2 have stripe_size_bytes, the last has the rest.
struct StripePlan {
  std::size_t value_size_bytes = 0;
  std::size_t stripe_size_bytes = 0;
  std::uint16_t count = 1;

  bool operator==(const StripePlan&) const = default;
};

// The piece of the value that one stripe carries.
struct StripeExtent {
  std::size_t offset = 0;
  std::size_t size_bytes = 0;

  bool operator==(const StripeExtent&) const = default;
};

// Up to 4 MiB one stripe; above, as few as possible, equal up to 4 KiB, at most 4 MiB each.
// A value above kValueSizeBytesMax (256 GiB less one stripe) cannot be stored: its count is 0.
[[nodiscard]] StripePlan stripe_plan(std::size_t value_size_bytes) noexcept;

// Requires: index < plan.count.
[[nodiscard]] StripeExtent stripe_extent(const StripePlan& plan, std::size_t index) noexcept;

// Makes the key of a stripe out of the key of the value: "#<index>" behind it, nothing for 0.
void append_stripe_suffix(std::string& key, std::size_t index);

// The generation that all stripes of one value carry: XXH3-64 over the payload checksums of the
// stripes, in order, 8 little-endian bytes each. Equal content makes equal generations.
[[nodiscard]] std::uint64_t generation_of(std::span<const std::uint64_t> checksums) noexcept;

}  // namespace kvferry::codec
