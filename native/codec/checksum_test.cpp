#include "codec/checksum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kvferry::codec {
namespace {

std::vector<std::byte> counting_bytes(std::size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  for (std::size_t i = 0; i < size_bytes; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

// Values of the reference implementation; the lengths take its four different paths.
TEST(Xxh3, AgreesWithTheReference) {
  EXPECT_EQ(xxh3_64({}), 0x2d06800538d394c2u);
  EXPECT_EQ(xxh3_64(as_bytes("a")), 0xe6c632b61e964e1fu);
  EXPECT_EQ(xxh3_64(as_bytes("abc")), 0x78af5f94892f3950u);
  EXPECT_EQ(xxh3_64(counting_bytes(1024)), 0xa870f92984398d22u);
}

TEST(Xxh3, StreamingIsTheSameWhateverThePieces) {
  const auto bytes = counting_bytes(10'007);
  const std::uint64_t whole = xxh3_64(bytes);
  Xxh3 hash;
  for (const std::size_t piece_size : {1u, 7u, 64u, 255u, 256u, 257u, 4096u, 10'007u}) {
    hash.reset();
    for (std::size_t at = 0; at < bytes.size(); at += piece_size) {
      hash.update(ByteView(bytes).subspan(at, std::min(piece_size, bytes.size() - at)));
    }
    EXPECT_EQ(hash.digest(), whole) << piece_size;
  }
}

TEST(Xxh3, DigestDoesNotEndTheStream) {
  Xxh3 hash;
  EXPECT_EQ(hash.digest(), xxh3_64({}));
  hash.update(as_bytes("a"));
  EXPECT_EQ(hash.digest(), xxh3_64(as_bytes("a")));
  hash.update({});
  hash.update(as_bytes("bc"));
  EXPECT_EQ(hash.digest(), xxh3_64(as_bytes("abc")));
}

TEST(Xxh3, ACopyGoesItsOwnWay) {
  Xxh3 hash;
  hash.update(as_bytes("a"));
  Xxh3 copy = hash;
  copy.update(as_bytes("bc"));
  EXPECT_EQ(copy.digest(), xxh3_64(as_bytes("abc")));
  EXPECT_EQ(hash.digest(), xxh3_64(as_bytes("a")));
}

TEST(Xxh3, AlignmentOfTheInputDoesNotMatter) {
  const auto bytes = counting_bytes(4096 + 64);
  const auto window = ByteView(bytes).subspan(3, 4000);
  const std::vector<std::byte> moved(window.begin(), window.end());
  EXPECT_EQ(xxh3_64(window), xxh3_64(moved));
}

// Short pieces are not worth the call of a kernel, so in one value both work on the same state.
TEST(Xxh3, KernelsAgreeAndTakeTurns) {
  const auto bytes = counting_bytes(100'003);
  for (const std::size_t size : {1023u, 1024u, 1025u, 2048u, 65'536u, 100'003u}) {
    const ByteView value = ByteView(bytes).first(size);
    Xxh3 short_pieces;  // never a kernel
    Xxh3 mixed;
    for (std::size_t at = 0; at < size; at += 1000) {
      short_pieces.update(value.subspan(at, std::min<std::size_t>(1000, size - at)));
    }
    std::size_t at = 0;
    for (const std::size_t piece : {5u, 1024u, 100u, 9000u, 1023u, 100'003u}) {
      const std::size_t step = std::min(piece, size - at);
      mixed.update(value.subspan(at, step));
      at += step;
    }
    EXPECT_EQ(xxh3_64(value), short_pieces.digest()) << size;
    EXPECT_EQ(mixed.digest(), short_pieces.digest()) << size;
  }
}

}  // namespace
}  // namespace kvferry::codec
