#include "node/leases.hpp"

namespace kvferry::node {

std::string_view Leases::refusal(std::size_t bytes) const noexcept {
  if (leases_.size() >= limits_.count_max) return "too many leases on this connection";
  if (bytes > limits_.bytes_max || bytes_ > limits_.bytes_max - bytes) {
    return "too many bytes are leased to this connection";
  }
  return {};
}

std::uint64_t Leases::add(std::vector<ValuePtr> values, std::size_t bytes, InFlight::Ticket ticket,
                          UnixMs until) {
  leases_.emplace(next_, Lease{.values = std::move(values),
                               .bytes = bytes,
                               .ticket = std::move(ticket),
                               .until = until});
  bytes_ += bytes;
  return next_++;
}

bool Leases::release(std::uint64_t id) {
  const auto found = leases_.find(id);
  if (found == leases_.end()) return false;
  bytes_ -= found->second.bytes;
  leases_.erase(found);
  return true;
}

std::size_t Leases::expire(UnixMs now) {
  return std::erase_if(leases_, [&](const auto& lease) {
    if (now < lease.second.until) return false;
    bytes_ -= lease.second.bytes;
    return true;
  });
}

void Leases::clear() noexcept {
  leases_.clear();
  bytes_ = 0;
}

}  // namespace kvferry::node
