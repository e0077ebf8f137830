#include "codec/stripe.hpp"

#include <gtest/gtest.h>

#include <array>

#include "codec/checksum.hpp"

namespace kvferry::codec {
namespace {

// The rules of docs/formats/frame.md, for any plan.
void expect_lawful(std::size_t value_size_bytes) {
  SCOPED_TRACE(value_size_bytes);
  const auto plan = stripe_plan(value_size_bytes);
  std::size_t covered = 0;
  for (std::size_t i = 0; i < plan.count; ++i) {
    const auto [offset, size] = stripe_extent(plan, i);
    ASSERT_EQ(offset, covered);
    ASSERT_LE(size, kStripeSizeBytesMax);
    if (i + 1 < plan.count) {
      ASSERT_EQ(size, plan.stripe_size_bytes);
      ASSERT_EQ(size % 4096, 0u);
    } else if (plan.count > 1) {
      ASSERT_GT(size, 0u);
      ASSERT_LE(size, plan.stripe_size_bytes);
    }
    covered += size;
  }
  EXPECT_EQ(covered, value_size_bytes);
  if (value_size_bytes > 0) {
    EXPECT_EQ(plan.count, (value_size_bytes + kStripeSizeBytesMax - 1) / kStripeSizeBytesMax);
  }
}

TEST(StripePlan, UpToFourMebibytesIsOneStripe) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, 1 * kMiB, 4 * kMiB}) {
    EXPECT_EQ(stripe_plan(size), (StripePlan{size, size, 1}));
    EXPECT_EQ(stripe_extent(stripe_plan(size), 0), (StripeExtent{0, size}));
  }
}

TEST(StripePlan, AboveItStripesAreEqual) {
  EXPECT_EQ(stripe_plan(8 * kMiB), (StripePlan{8 * kMiB, 4 * kMiB, 2}));
  EXPECT_EQ(stripe_plan(40 * kMiB), (StripePlan{40 * kMiB, 4 * kMiB, 10}));
  EXPECT_EQ(stripe_plan(6 * kMiB), (StripePlan{6 * kMiB, 3 * kMiB, 2}));
  EXPECT_EQ(stripe_plan(4 * kMiB + 1), (StripePlan{4 * kMiB + 1, 2 * kMiB + 4096, 2}));
}

TEST(StripePlan, KeepsItsRulesForEveryLength) {
  for (std::size_t count = 1; count < 70; ++count) {
    for (const std::size_t size : {count * 4 * kMiB - 1, count * 4 * kMiB, count * 4 * kMiB + 1,
                                   count * 4 * kMiB + 4095, count * 4 * kMiB + 12'345}) {
      expect_lawful(size);
    }
  }
  // Where the rounding of many stripes adds up to more than one stripe.
  for (const std::size_t count : {511u, 1023u, 1024u, 1025u, 2000u, 65'534u}) {
    expect_lawful(count * 4 * kMiB + 1);
    expect_lawful(count * 4 * kMiB + 4 * kMiB - 1);
  }
  expect_lawful(kValueSizeBytesMax);
}

TEST(StripePlan, RefusesWhatSixteenBitsCannotCount) {
  EXPECT_EQ(stripe_plan(kValueSizeBytesMax).count, 65'535);
  EXPECT_EQ(stripe_plan(kValueSizeBytesMax + 1).count, 0);
  EXPECT_EQ(stripe_plan(SIZE_MAX).count, 0);
}

TEST(StripeKey, IsTheKeyItselfForTheFirst) {
  std::string key("bin\0ary", 7);
  append_stripe_suffix(key, 0);
  EXPECT_EQ(key, std::string("bin\0ary", 7));
  append_stripe_suffix(key, 12);
  EXPECT_EQ(key, std::string("bin\0ary#12", 10));
  std::string last;
  append_stripe_suffix(last, 65'534);
  EXPECT_EQ(last, "#65534");
}

TEST(Generation, HashesTheChecksumsAsLittleEndianBytesInOrder) {
  const std::array<std::uint64_t, 2> checksums{0x3736353433323130u, 0x4645444342413938u};
  EXPECT_EQ(generation_of(checksums), xxh3_64(as_bytes("0123456789ABCDEF")));
  const std::array<std::uint64_t, 2> swapped{checksums[1], checksums[0]};
  EXPECT_NE(generation_of(checksums), generation_of(swapped));
}

}  // namespace
}  // namespace kvferry::codec
