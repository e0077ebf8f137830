#pragma once
// InFlight: how many bytes of values move at present, in and out, over all connections; a limit,
// because pages that move cannot be evicted.
//
// Threads: any. Lifetime: outlives its tickets.

#include <atomic>
#include <cstddef>
#include <optional>
#include <utility>

namespace kvferry::node {

class InFlight {
 public:
  // Some bytes of the limit, until it goes.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept
        : of_(std::exchange(other.of_, nullptr)), bytes_(other.bytes_) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Ticket() {
      // Relaxed: a sum that guards nothing else.
      if (of_ != nullptr) of_->bytes_.fetch_sub(bytes_, std::memory_order_relaxed);
    }

   private:
    friend class InFlight;
    Ticket(InFlight& of, std::size_t bytes) noexcept : of_(&of), bytes_(bytes) {}
    InFlight* of_ = nullptr;
    std::size_t bytes_ = 0;
  };

  explicit InFlight(std::size_t bytes_max) noexcept : bytes_max_(bytes_max) {}

  // Nothing: too much is on its way already. One alone always may.
  [[nodiscard]] std::optional<Ticket> take(std::size_t bytes) noexcept {
    std::size_t before = bytes_.load(std::memory_order_relaxed);
    do {
      if (before > 0 && (before >= bytes_max_ || bytes > bytes_max_ - before)) return std::nullopt;
    } while (!bytes_.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
    return Ticket(*this, bytes);
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return bytes_.load(std::memory_order_relaxed);
  }

 private:
  const std::size_t bytes_max_;
  std::atomic<std::size_t> bytes_{0};
};

}  // namespace kvferry::node
