#pragma once
// CodedPayloads: memory for encoded values, from when they are encoded until they are sent.
//
// One payload at a time is being made: between the head of its SET, which says its length, and its
// turn to be sent, it is held. Buffers are used again, because fresh memory costs as much as the
// encoding.
//
// Threads: one.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.hpp"

namespace kvferry::redis {

class CodedPayloads {
 public:
  CodedPayloads() { spare_.reserve(kSpareMax); }  // what gives memory back takes none

  // Room to encode into, until hold().
  [[nodiscard]] MutableBytes space(std::size_t size_bytes) {
    if (making_.size_bytes < size_bytes) {
      if (!spare_.empty()) {
        making_ = std::move(spare_.back());
        spare_.pop_back();
      }
      if (making_.size_bytes < size_bytes) {
        making_ = {std::make_unique_for_overwrite<std::byte[]>(size_bytes), size_bytes};
      }
    }
    return {making_.bytes.get(), making_.size_bytes};
  }
  // The payload is as long as that; 0: the next value is not encoded.
  void hold(std::size_t size_bytes) noexcept { held_bytes_ = size_bytes; }
  [[nodiscard]] ByteView held() const noexcept { return {making_.bytes.get(), held_bytes_}; }

  // What is held was put into the outbox, where it ends at this position.
  void added(std::uint64_t end) {
    unsent_bytes_ += held_bytes_;
    waiting_.push_back({std::move(making_), std::exchange(held_bytes_, 0), end});
    making_ = {};
  }
  void sent(std::uint64_t total) {
    while (!waiting_.empty() && waiting_.front().end <= total) give_back();
  }
  void clear() {
    held_bytes_ = 0;
    while (!waiting_.empty()) give_back();
  }
  [[nodiscard]] std::size_t unsent_bytes() const noexcept { return unsent_bytes_; }

 private:
  static constexpr std::size_t kSpareMax = 2;

  struct Buffer {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size_bytes = 0;
  };
  struct Waiting {
    Buffer buffer;
    std::size_t payload_bytes;
    std::uint64_t end;
  };

  void give_back() {
    unsent_bytes_ -= waiting_.front().payload_bytes;
    if (spare_.size() < kSpareMax) spare_.push_back(std::move(waiting_.front().buffer));
    waiting_.pop_front();
  }

  Buffer making_;
  std::size_t held_bytes_ = 0;
  std::deque<Waiting> waiting_;
  std::size_t unsent_bytes_ = 0;
  std::vector<Buffer> spare_;
};

}  // namespace kvferry::redis
