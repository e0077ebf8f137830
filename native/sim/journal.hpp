#pragma once
// Journal: the clock of a schedule, what happened in it, and the first rule that was broken.
//
// Everything that happens goes into a digest, so that two runs of one seed can be compared; with
// `print` it is told on stderr as well. A fault does not throw, because it is often found inside
// a noexcept call of the code under test; the scheduler looks after every step.

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/clock.hpp"

namespace kvferry::sim {

// Schedules begin about here: far from zero, as a machine's clock is.
inline constexpr Nanos kEpoch = 1000 * kSecond;

class Journal {
 public:
  Journal(bool print, Nanos now) noexcept : print_(print), begin_(now), now_(now) {}

  [[nodiscard]] Nanos now() const noexcept { return now_; }
  void advance(Nanos duration) noexcept { now_ += duration; }

  void note(const char* what, std::int64_t a = 0, std::int64_t b = 0) noexcept {
    const auto mix = [this](std::int64_t value) {
      digest_ = (digest_ ^ static_cast<std::uint64_t>(value)) * 0x100000001B3u;
    };
    mix(now_);
    mix(what[0] * 256 + what[1]);
    mix(a);
    mix(b);
    if (print_) {
      std::fprintf(stderr, "%12.6f ms  %-22s %6lld %6lld\n",
                   static_cast<double>(now_ - begin_) / 1e6, what, static_cast<long long>(a),
                   static_cast<long long>(b));
    }
  }
  [[nodiscard]] std::uint64_t digest() const noexcept { return digest_; }

  void fail(std::string rule) {
    if (print_) std::fprintf(stderr, "FAULT: %s\n", rule.c_str());
    if (fault_.empty()) fault_ = std::move(rule);
  }
  [[nodiscard]] bool failed() const noexcept { return !fault_.empty(); }
  [[nodiscard]] const std::string& fault() const noexcept { return fault_; }

  // Something went wrong on purpose; from then on answers may be UNAVAILABLE or late.
  void trouble(const char* what, std::int64_t a = 0, std::int64_t b = 0) noexcept {
    troubled_ = true;
    note(what, a, b);
  }
  [[nodiscard]] bool troubled() const noexcept { return troubled_; }

 private:
  const bool print_;
  const Nanos begin_;
  Nanos now_;
  std::uint64_t digest_ = 0xCBF29CE484222325u;
  bool troubled_ = false;
  std::string fault_;
};

}  // namespace kvferry::sim
