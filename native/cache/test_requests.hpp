#pragma once
// For tests: requests made of numbers, and names of all policies.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "cache/hashes.hpp"

namespace kvferry::cache {

inline constexpr std::array kAllPolicies = {"LRU", "LFU", "FIFO", "S3-FIFO", "ARC", "W-TinyLFU"};

inline ChunkHash hash_of(std::uint64_t number) { return {number, ~number}; }

// Owns the bytes of a request.
class Request {
 public:
  explicit Request(const std::vector<std::uint64_t>& numbers)
      : bytes_(numbers.size() * kHashBytes) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      hash_of(numbers[i]).store(bytes_.data() + i * kHashBytes);
    }
  }
  Request(std::initializer_list<std::uint64_t> numbers)
      : Request(std::vector<std::uint64_t>(numbers)) {}

  operator Hashes() const { return Hashes(bytes_); }  // NOLINT implicit

 private:
  std::vector<std::byte> bytes_;
};

// first, first + 1, ...
inline Request run(std::uint64_t first, std::size_t count) {
  std::vector<std::uint64_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = first + i;
  return Request(numbers);
}

}  // namespace kvferry::cache
