#include "connector/file_format.hpp"

#include <gtest/gtest.h>

#include "connector/test_jobs.hpp"

namespace kvferry::connector {
namespace {

using Block = std::array<std::byte, kFileBlockBytes>;
using codec::FrameFault;

FileHead sample() {
  return {.key = "p:chunk",
          .identity = test_space(1).identity,
          .payload_size_bytes = 10'000,
          .payload_checksum = 0x0123456789abcdef,
          .expires_at_ms = 1'700'000'000'000};
}

TEST(FileFormat, AHeadComesBackAsItWas) {
  Block block;
  encode_file_head(sample(), block);
  FileHead head;
  ASSERT_EQ(decode_file_head(block, head), FrameFault::kNone);
  EXPECT_EQ(head, sample());
  EXPECT_EQ(file_size(10'000, false), 4096u * 4);
  EXPECT_EQ(file_size(4096, false), 4096u * 2);
  EXPECT_EQ(file_size(1, true), 4096u * 3);
}

TEST(FileFormat, EveryFlippedBitIsFound) {
  Block block;
  encode_file_head(sample(), block);
  for (std::size_t bit = 0; bit < 8 * block.size(); ++bit) {
    Block damaged = block;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    FileHead head;
    ASSERT_NE(decode_file_head(damaged, head), FrameFault::kNone) << "bit " << bit;
    ASSERT_EQ(head, FileHead{}) << "bit " << bit;
  }
}

TEST(FileFormat, OnlyTheValueThatWasAskedForFits) {
  const FileHead head = sample();
  EXPECT_EQ(check_file_head(head, "p:chunk", test_space(10'000)), FrameFault::kNone);
  EXPECT_EQ(check_file_head(head, "p:chunk", test_space(10'000, 2)), FrameFault::kIdentity);
  EXPECT_EQ(check_file_head(head, "p:chunc", test_space(10'000)), FrameFault::kKey);
  EXPECT_EQ(check_file_head(head, "p:chunk", test_space(10'001)), FrameFault::kSize);
  // The second half of an identity counts, although a frame has only the first.
  Space other = test_space(10'000);
  other.identity[15] ^= std::byte{1};
  EXPECT_EQ(check_file_head(head, "p:chunk", other), FrameFault::kIdentity);
}

TEST(FileFormat, KeysOfAnyBytesAndTheLongestFit) {
  for (const std::string& key : {std::string("\0\n/..\xff", 6), std::string(512, 'k')}) {
    FileHead head = sample();
    head.key = key;
    Block block;
    encode_file_head(head, block);
    FileHead read;
    ASSERT_EQ(decode_file_head(block, read), FrameFault::kNone);
    EXPECT_EQ(read.key, key);
    const std::string name = file_name(key);
    EXPECT_EQ(name.size(), 19u);
    EXPECT_EQ(name.substr(0, 2), name.substr(3, 2));
    EXPECT_EQ(name.find_first_not_of("0123456789abcdef/"), std::string::npos);
  }
}

// docs/formats/file.md shows these names.
TEST(FileFormat, NamesStayWhatTheyAre) { EXPECT_EQ(file_name("demo:0"), "9f/9f118124ed61bd07"); }

}  // namespace
}  // namespace kvferry::connector
