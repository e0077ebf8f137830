#pragma once
// Zeroed<T>: a fixed array of zeroed elements whose memory the system supplies at first use.
//
// So an index of ten million places costs what it holds and not what it could hold. Large arrays
// ask for huge pages: a table that is probed at random misses the TLB otherwise.
//
// Lifetime: move-only; the memory goes with it. Failure: std::bad_alloc in the constructor.

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "mem/arena.hpp"

namespace kvferry::cache {

template <typename T>
class Zeroed {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  explicit Zeroed(std::size_t count) : count_(count), arena_(map(count)) {}

  // Requires: index < size(). Not checked: this is the innermost loop of every lookup.
  T& operator[](std::size_t index) noexcept { return data()[index]; }
  const T& operator[](std::size_t index) const noexcept { return data()[index]; }

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return count_ * sizeof(T); }

 private:
  static mem::Arena map(std::size_t count) {
    if (count > SIZE_MAX / 4 / sizeof(T)) throw std::bad_alloc();
    const std::size_t bytes = count > 0 ? count * sizeof(T) : sizeof(T);
    auto arena = mem::Arena::map(bytes, {.hugetlb = false, .prefault = false});
    if (!arena) throw std::bad_alloc();
    return std::move(*arena);
  }
  // T is an implicit-lifetime type, so the mapping may be taken for an array of it.
  T* data() noexcept { return reinterpret_cast<T*>(arena_.bytes().data()); }
  const T* data() const noexcept { return reinterpret_cast<const T*>(arena_.bytes().data()); }

  std::size_t count_;
  mem::Arena arena_;
};

}  // namespace kvferry::cache
