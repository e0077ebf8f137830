#pragma once
// InFlight: how many bytes of values move at present, over all connections, because pages that move
// cannot be evicted. What arrives and what leaves have a limit each, of the same size, so that
// neither can shut out the other.
//
// Threads: any. Lifetime: outlives its tickets.

#include <atomic>
#include <cstddef>
#include <optional>
#include <utility>

namespace kvferry::node {

class InFlight {
 public:
  // Some bytes of a limit, until it goes.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept
        : of_(std::exchange(other.of_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Ticket() {
      // Relaxed: a sum that guards nothing else.
      if (of_ != nullptr) of_->fetch_sub(bytes_, std::memory_order_relaxed);
    }

    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

   private:
    friend class InFlight;
    Ticket(std::atomic<std::size_t>& of, std::size_t bytes) noexcept : of_(&of), bytes_(bytes) {}
    std::atomic<std::size_t>* of_ = nullptr;
    std::size_t bytes_ = 0;
  };

  explicit InFlight(std::size_t bytes_max) noexcept : bytes_max_(bytes_max) {}

  // For a value that leaves, whatever the limit says; see crowded().
  [[nodiscard]] Ticket send(std::size_t bytes) noexcept {
    out_.fetch_add(bytes, std::memory_order_relaxed);
    return Ticket(out_, bytes);
  }
  // Whether so much is leaving that nobody should send more than one value at a time.
  [[nodiscard]] bool crowded() const noexcept {
    return out_.load(std::memory_order_relaxed) >= bytes_max_;
  }
  // The same, up to the limit. Nothing: too much is on its way already. One alone always may.
  [[nodiscard]] std::optional<Ticket> take(std::size_t bytes) noexcept {
    Ticket ticket;
    if (!grow(ticket, bytes, out_)) return std::nullopt;
    return ticket;
  }
  // More bytes for a value that arrives. False: too much arrives already. One alone always may.
  bool receive(Ticket& ticket, std::size_t bytes) noexcept { return grow(ticket, bytes, in_); }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return in_.load(std::memory_order_relaxed) + out_.load(std::memory_order_relaxed);
  }

 private:
  bool grow(Ticket& ticket, std::size_t bytes, std::atomic<std::size_t>& sum) noexcept {
    std::size_t before = sum.load(std::memory_order_relaxed);
    do {
      const bool alone = before == ticket.bytes_;
      if (!alone && (before >= bytes_max_ || bytes > bytes_max_ - before)) return false;
    } while (!sum.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
    ticket.of_ = &sum;
    ticket.bytes_ += bytes;
    return true;
  }

  const std::size_t bytes_max_;
  std::atomic<std::size_t> in_{0}, out_{0};
};

}  // namespace kvferry::node
