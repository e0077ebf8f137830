#include "codec/frame.hpp"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "codec/checksum.hpp"
#include "codec/little_endian.hpp"
#include "codec/stripe.hpp"

namespace kvferry::codec {
namespace {

using Header = std::array<std::byte, kFrameSizeBytes>;

constexpr std::array kIdentityDigest = {std::byte{0x00}, std::byte{0x11}, std::byte{0x22},
                                        std::byte{0x33}, std::byte{0x44}, std::byte{0x55},
                                        std::byte{0x66}, std::byte{0x77}};

// The 64 bytes of tests/golden/frame/<name>.hex.
Header golden(const std::string& name) {
  const auto root = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
  std::ifstream file(root / "tests" / "golden" / "frame" / (name + ".hex"));
  EXPECT_TRUE(file.good()) << name;
  Header header{};
  std::size_t size = 0;
  for (std::string word; file >> word;) {
    if (word.front() == '#') {
      std::getline(file, word);
    } else if (size < header.size()) {
      header[size++] = static_cast<std::byte>(std::stoi(word, nullptr, 16));
    }
  }
  EXPECT_EQ(size, header.size()) << name;
  return header;
}

// The frames of a value as docs/formats/frame.md derives them.
std::vector<Frame> frames_of(std::string_view key, ByteView value) {
  const auto plan = stripe_plan(value.size());
  std::vector<std::uint64_t> checksums;
  for (std::size_t i = 0; i < plan.count; ++i) {
    const auto [offset, size] = stripe_extent(plan, i);
    checksums.push_back(xxh3_64(value.subspan(offset, size)));
  }
  std::vector<Frame> frames;
  for (std::size_t i = 0; i < plan.count; ++i) {
    frames.push_back(Frame{
        .payload_size_bytes = stripe_extent(plan, i).size_bytes,
        .original_size_bytes = value.size(),
        .payload_checksum = checksums[i],
        .identity = load_le<std::uint64_t>(kIdentityDigest.data()),
        .key_digest = xxh3_64(as_bytes(key)),
        .generation = generation_of(checksums),
        .stripe_index = static_cast<std::uint16_t>(i),
        .stripe_count = plan.count,
    });
  }
  return frames;
}

Header encoded(const Frame& frame) {
  Header header;
  header.fill(std::byte{0xEE});
  encode_frame(frame, header);
  return header;
}

// A header whose checksum is right although `offset` holds something else.
Header resealed(Header header, std::size_t offset, std::uint8_t value) {
  header[offset] = std::byte{value};
  store_le(static_cast<std::uint32_t>(xxh3_64(ByteView(header).first(60))), header.data() + 60);
  return header;
}

FrameFault fault_of(const Header& header) {
  Frame frame;
  return decode_frame(header, frame);
}

Frame example() { return frames_of("demo:0", as_bytes("hello, kvferry")).front(); }

TEST(Frame, GoldenHeadersAreWhatWeWriteAndRead) {
  std::vector<std::byte> large(5 * kMiB + 1);
  for (std::size_t i = 0; i < large.size(); ++i) {
    large[i] = static_cast<std::byte>(31 * i + i / 256);
  }
  const auto stripes = frames_of("demo:large", large);
  ASSERT_EQ(stripes.size(), 2u);
  const std::vector<std::pair<std::string, Frame>> cases = {
      {"single", example()},
      {"empty", frames_of("demo:empty", {}).front()},
      {"stripe-0", stripes[0]},
      {"stripe-1", stripes[1]},
  };
  for (const auto& [file, frame] : cases) {
    SCOPED_TRACE(file);
    EXPECT_EQ(encoded(frame), golden(file));
    Frame decoded;
    EXPECT_EQ(decode_frame(golden(file), decoded), FrameFault::kNone);
    EXPECT_EQ(decoded, frame);
  }
}

TEST(Frame, EveryFlippedBitIsCaught) {
  for (const char* file : {"single", "empty", "stripe-0", "stripe-1"}) {
    for (std::size_t bit = 0; bit < 8 * kFrameSizeBytes; ++bit) {
      Header header = golden(file);
      header[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      const FrameFault expected = bit < 32   ? FrameFault::kMagic
                                  : bit < 40 ? FrameFault::kVersion
                                             : FrameFault::kHeaderChecksum;
      EXPECT_EQ(fault_of(header), expected) << file << " bit " << bit;
    }
  }
}

TEST(Frame, OtherBytesAreNoFrame) {
  EXPECT_EQ(fault_of(Header{}), FrameFault::kMagic);
  EXPECT_EQ(fault_of(encoded({})), FrameFault::kNone);
}

TEST(Frame, WhatWeDoNotKnowIsRefusedEvenUnderARightChecksum) {
  const Header header = encoded(example());
  EXPECT_EQ(fault_of(resealed(header, 4, 2)), FrameFault::kVersion);
  EXPECT_EQ(fault_of(resealed(header, 5, 9)), FrameFault::kCodec);
  EXPECT_EQ(fault_of(resealed(header, 5, 255)), FrameFault::kCodec);
  EXPECT_EQ(fault_of(resealed(header, 6, 1)), FrameFault::kFlags);
  EXPECT_EQ(fault_of(resealed(header, 7, 0x80)), FrameFault::kFlags);
}

TEST(Frame, ContradictionsAreRefused) {
  const auto fault_with = [](auto change) {
    Frame frame = example();
    change(frame);
    return fault_of(encoded(frame));
  };
  EXPECT_EQ(fault_with([](Frame& f) { f.stripe_count = 0; }), FrameFault::kShape);
  EXPECT_EQ(fault_with([](Frame& f) { f.stripe_index = 1; }), FrameFault::kShape);
  EXPECT_EQ(fault_with([](Frame& f) { ++f.payload_size_bytes; }), FrameFault::kShape);
  EXPECT_EQ(fault_with([](Frame& f) { --f.payload_size_bytes; }), FrameFault::kShape);
  EXPECT_EQ(fault_with([](Frame& f) { f.stripe_count = 2; }), FrameFault::kShape);
  EXPECT_EQ(fault_with([](Frame& f) {
              f.stripe_count = 2;
              ++f.original_size_bytes;
            }),
            FrameFault::kNone);
}

TEST(Frame, ACodedPayloadIsShorterAndForThoseWhoDecode) {
  Frame frame = example();
  frame.codec = Codec::kSplit12;
  EXPECT_EQ(fault_of(encoded(frame)), FrameFault::kShape);
  --frame.payload_size_bytes;
  EXPECT_EQ(fault_of(encoded(frame)), FrameFault::kNone);
  FrameExpectation expected{.identity = frame.identity,
                            .key_digest = frame.key_digest,
                            .payload_size_bytes = frame.original_size_bytes,
                            .original_size_bytes = frame.original_size_bytes};
  EXPECT_EQ(check_frame(frame, expected), FrameFault::kCodec);
  expected.decodes = true;
  EXPECT_EQ(check_frame(frame, expected), FrameFault::kNone);
  ++expected.original_size_bytes;
  EXPECT_EQ(check_frame(frame, expected), FrameFault::kSize);
}

TEST(Frame, ARefusedHeaderLeavesTheFrameAlone) {
  Frame frame = example();
  const Frame before = frame;
  EXPECT_EQ(decode_frame(resealed(encoded({}), 6, 1), frame), FrameFault::kFlags);
  EXPECT_EQ(frame, before);
}

TEST(Frame, IsTakenOnlyWhenItIsTheOneAskedFor) {
  const Frame frame = example();
  const FrameExpectation expected{.identity = frame.identity,
                                  .key_digest = frame.key_digest,
                                  .payload_size_bytes = frame.payload_size_bytes,
                                  .original_size_bytes = frame.original_size_bytes,
                                  .stripe_index = 0,
                                  .stripe_count = 1};
  const auto fault_with = [&](auto change) {
    FrameExpectation other = expected;
    change(other);
    return check_frame(frame, other);
  };
  using E = FrameExpectation;
  EXPECT_EQ(check_frame(frame, expected), FrameFault::kNone);
  EXPECT_EQ(fault_with([](E& e) { ++e.identity; }), FrameFault::kIdentity);
  EXPECT_EQ(fault_with([](E& e) { ++e.key_digest; }), FrameFault::kKey);
  EXPECT_EQ(fault_with([](E& e) { ++e.original_size_bytes; }), FrameFault::kSize);
  EXPECT_EQ(fault_with([](E& e) { ++e.payload_size_bytes; }), FrameFault::kSize);
  EXPECT_EQ(fault_with([](E& e) { e.stripe_index = 1; }), FrameFault::kStripe);
  EXPECT_EQ(fault_with([](E& e) { e.stripe_count = 2; }), FrameFault::kStripe);
}

// All headers of a value, one behind the other.
std::vector<std::byte> headers_of(const std::vector<Frame>& frames) {
  std::vector<std::byte> headers(frames.size() * kFrameSizeBytes);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    encode_frame(frames[i],
                 std::span(headers).subspan(i * kFrameSizeBytes).first<kFrameSizeBytes>());
  }
  return headers;
}

TEST(Frame, AValueIsCheckedWithAllItsStripes) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{14}, 9 * kMiB + 5}) {
    const std::vector<std::byte> value(size, std::byte{7});
    const auto frames = frames_of("key", value);
    std::vector<std::uint64_t> checksums;
    for (const Frame& frame : frames) checksums.push_back(frame.payload_checksum);
    const FrameExpectation whole{.identity = frames[0].identity,
                                 .key_digest = frames[0].key_digest,
                                 .payload_size_bytes = size,
                                 .original_size_bytes = size};
    const auto fault_with = [&](auto change) {
      std::vector<Frame> other = frames;
      change(other);
      return check_value(headers_of(other), checksums, whole);
    };
    using All = std::vector<Frame>;
    EXPECT_EQ(fault_with([](All&) {}), FrameFault::kNone) << size;
    EXPECT_EQ(fault_with([](All& all) { ++all.back().identity; }), FrameFault::kIdentity);
    EXPECT_EQ(fault_with([](All& all) { ++all.back().key_digest; }), FrameFault::kKey);
    EXPECT_EQ(fault_with([](All& all) { ++all.back().payload_checksum; }),
              FrameFault::kPayloadChecksum);
    EXPECT_EQ(fault_with([](All& all) { ++all.back().generation; }), FrameFault::kGeneration);
    EXPECT_EQ(fault_with([](All& all) { ++all.back().payload_size_bytes; }),
              size < kMiB ? FrameFault::kShape : FrameFault::kSize);
    EXPECT_EQ(fault_with([](All& all) { all.pop_back(); }), FrameFault::kShape);
    EXPECT_EQ(fault_with([](All& all) { all.push_back(all.back()); }), FrameFault::kShape);
    auto damaged = headers_of(frames);
    damaged.back() ^= std::byte{1};
    EXPECT_EQ(check_value(damaged, checksums, whole), FrameFault::kHeaderChecksum);
    if (frames.size() > 1) {
      EXPECT_EQ(fault_with([](All& all) { std::swap(all[0], all[1]); }), FrameFault::kStripe);
      checksums.pop_back();
      EXPECT_EQ(fault_with([](All& all) { all.pop_back(); }), FrameFault::kStripe);
    }
  }
  EXPECT_EQ(check_value({}, {}, {}), FrameFault::kShape);
}

TEST(Frame, AStoreMayKeepALongValueInOnePiece) {
  const std::vector<std::byte> value(5 * kMiB, std::byte{7});
  const std::uint64_t checksum = xxh3_64(value);
  const Frame frame{.payload_size_bytes = value.size(),
                    .original_size_bytes = value.size(),
                    .payload_checksum = checksum,
                    .generation = generation_of(std::span(&checksum, 1))};
  const FrameExpectation whole{.original_size_bytes = value.size()};
  EXPECT_EQ(check_value(headers_of({frame}), std::span(&checksum, 1), whole), FrameFault::kNone);
}

TEST(Frame, FaultsHaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  const auto last = static_cast<unsigned>(FrameFault::kGeneration);
  for (unsigned i = 0; i <= last; ++i) names.insert(name(static_cast<FrameFault>(i)));
  EXPECT_EQ(names.size(), last + 1);
  EXPECT_FALSE(names.contains("?"));
}

}  // namespace
}  // namespace kvferry::codec
