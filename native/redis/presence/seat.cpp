#include "redis/presence/seat.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>

namespace kvferry::redis {

bool PresenceSeat::take() {
  if (taken()) return true;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A zero byte first: no file, and no end before the length that is given.
  const std::size_t length = std::min(name_.size(), sizeof(address.sun_path) - 1);
  std::copy_n(name_.begin(), length, address.sun_path + 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    return false;
  }
  socket_ = std::move(socket);
  return true;
}

}  // namespace kvferry::redis
