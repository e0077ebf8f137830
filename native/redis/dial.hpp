#pragma once
// Dial: attempts to reach a server: when the next one begins, which of the addresses is tried, for
// how long each, and what they failed of.
//
// A machine: it is told what happened and when. Threads: one. Limits: an attempt takes the connect
// timeout, greeting included; each address has an equal share of what is left of it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "redis/backoff.hpp"
#include "redis/server.hpp"

namespace kvferry::redis {

class Dial {
 public:
  static constexpr Nanos kNextAddressAfter = 300 * kMilli;  // RFC 8305 names 250 ms

  Dial(const Config& config, std::uint64_t seed) noexcept
      : connect_timeout_(config.connect_timeout),
        backoff_(config.reconnect_min, config.reconnect_max, seed) {}

  // --- Between attempts. ---
  [[nodiscard]] Nanos begins_at() const noexcept { return begins_at_; }
  void begin(Nanos now);
  // The attempt failed, or the connection was lost: the next one begins after a pause.
  void pause(Nanos now) noexcept { begins_at_ = add_time(now, backoff_.next()); }
  void succeeded() noexcept { backoff_.reset(); }

  // --- An attempt. ---
  // Counts them, so that answers that come late are ignored.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  // A shortcut is tried before the addresses.
  void resolved(std::vector<net::Address> addresses, const Shortcut& shortcut);
  [[nodiscard]] bool has_next() const noexcept { return next_ < addresses_.size(); }
  // Requires: has_next().
  [[nodiscard]] const net::Address& next(Nanos now) noexcept;
  // The one that is tried.
  [[nodiscard]] const net::Address& address() const noexcept { return addresses_[next_ - 1]; }
  // The version of the shortcut, if that is what is tried, or was; 0: it is not.
  [[nodiscard]] std::uint64_t shortcut() const noexcept { return tried_shortcut_; }
  // False: it was not tried.
  bool leave_shortcut() noexcept { return std::exchange(tried_shortcut_, 0) != 0; }
  // Whether what fails now may be tried over the addresses, too.
  [[nodiscard]] bool may_go_on(Nanos now) const noexcept {
    return tried_shortcut_ != 0 && now < deadline_;
  }
  // Somebody is there; what follows (TLS, the greeting) may take longer.
  void answered(Nanos now) noexcept { address_deadline_ = share_of_time(now); }
  void greets(Nanos now) noexcept {
    answered(now);
    greeted_at_ = now;
  }
  [[nodiscard]] Nanos greeting_took(Nanos now) const noexcept { return now - greeted_at_; }

  enum class Late : std::uint8_t { kNo, kAddress, kAttempt };
  [[nodiscard]] Late late(Nanos now) const noexcept;
  // When it will be.
  [[nodiscard]] Nanos due() const noexcept;

  std::string why;  // the last address failed

 private:
  [[nodiscard]] Nanos share_of_time(Nanos now) const noexcept;

  const Nanos connect_timeout_;
  Backoff backoff_;
  Nanos begins_at_ = 0;
  Nanos deadline_ = 0;          // when to give up
  Nanos address_deadline_ = 0;  // when to try the next address
  Nanos greeted_at_ = 0;
  std::uint64_t number_ = 0;
  std::vector<net::Address> addresses_;
  std::size_t next_ = 0;              // of addresses_
  std::uint64_t shortcut_ = 0;        // the version of the server's, if addresses_ begins with it
  std::uint64_t tried_shortcut_ = 0;  // the same, once it is tried
};

}  // namespace kvferry::redis
