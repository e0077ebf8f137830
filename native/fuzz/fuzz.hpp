#pragma once
// What the fuzzers share: a check that stops them, and ways to cut an input into pieces.
//
// Every machine here must not care how its input is cut, so each fuzzer runs it for several
// Cuttings and compares. Threads: one.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/bytes.hpp"

namespace kvferry::fuzz {

// Stops the process, which is how a fuzzer learns of a fault.
inline void require(bool condition, std::string_view what, std::string_view detail = "") {
  if (condition) return;
  std::fprintf(stderr, "fuzz: %.*s\n%.*s\n", static_cast<int>(what.size()), what.data(),
               static_cast<int>(detail.size()), detail.data());
  std::abort();
}

enum class Cutting : std::uint8_t { kWhole, kBytes, kVaried };
inline constexpr Cutting kCuttings[] = {Cutting::kWhole, Cutting::kBytes, Cutting::kVaried};

// The sizes of successive pieces: always the same for the same input.
class Pieces {
 public:
  Pieces(Cutting cutting, std::string_view input) noexcept : cutting_(cutting) {
    for (const char c : input) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }

  std::size_t next() noexcept {
    if (cutting_ == Cutting::kWhole) return SIZE_MAX;
    if (cutting_ == Cutting::kBytes) return 1;
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    return std::size_t{1} + ((state_ >> 40) & ((1u << ((state_ >> 33) % 8)) - 1));
  }

 private:
  Cutting cutting_;
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

inline std::string_view as_input(const std::uint8_t* data, std::size_t size) noexcept {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace kvferry::fuzz
