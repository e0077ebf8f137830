#include "redis/dial.hpp"

#include <algorithm>

namespace kvferry::redis {

void Dial::begin(Nanos now) {
  ++number_;
  deadline_ = address_deadline_ = add_time(now, connect_timeout_);
  addresses_.clear();
  next_ = 0;
  shortcut_ = tried_shortcut_ = 0;
}

void Dial::resolved(std::vector<net::Address> addresses, const Shortcut& shortcut) {
  addresses_ = std::move(addresses);
  next_ = 0;
  shortcut_ = shortcut.version;
  if (shortcut_ != 0) addresses_.insert(addresses_.begin(), shortcut.address);
  why = "no address accepted the connection";
}

const net::Address& Dial::next(Nanos now) noexcept {
  if (next_ == 0) tried_shortcut_ = shortcut_;
  ++next_;
  address_deadline_ = std::min(share_of_time(now), add_time(now, kNextAddressAfter));
  return address();
}

// When the present address has had its share of the time that is left.
Nanos Dial::share_of_time(Nanos now) const noexcept {
  const auto others = static_cast<Nanos>(addresses_.size() - next_);
  return now + (deadline_ - now) / (others + 1);
}

Dial::Late Dial::late(Nanos now) const noexcept {
  if (now >= deadline_) return Late::kAttempt;
  return now >= address_deadline_ && has_next() ? Late::kAddress : Late::kNo;
}

Nanos Dial::due() const noexcept {
  return has_next() ? std::min(address_deadline_, deadline_) : deadline_;
}

}  // namespace kvferry::redis
