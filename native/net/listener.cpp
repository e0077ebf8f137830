#include "net/listener.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace kvferry::net {
namespace {

constexpr int kBacklog = 511;

std::uint16_t port_of(const Address& address) {
  if (address.family() == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
}

const sockaddr* name_of(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

// Whether the path is a socket where nobody listens any more.
bool is_left_over(const Address& address, const std::string& path) {
  struct stat facts{};
  if (::lstat(path.c_str(), &facts) != 0 || !S_ISSOCK(facts.st_mode)) return false;
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  return probe && ::connect(probe.get(), name_of(address), address.length) != 0 &&
         errno == ECONNREFUSED;
}

}  // namespace

Result<Listener> Listener::open(const Endpoint& endpoint) {
  const auto addresses = resolve(endpoint);
  if (!addresses) return addresses.error();
  const Address& address = addresses->front();
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return system_error("socket", errno);
  const std::string where = "cannot listen at " + endpoint.text();
  if (endpoint.is_unix()) {
    if (is_left_over(address, endpoint.unix_path)) ::unlink(endpoint.unix_path.c_str());
    ::fchmod(fd.get(), 0600);  // before it has a name, so that there is no moment for others
  } else {
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (::bind(fd.get(), name_of(address), address.length) != 0) {
    return system_error(where, errno, Errc::kConnect);
  }
  Endpoint bound = endpoint;
  if (!endpoint.is_unix()) {
    const auto local = local_address(fd.get());
    if (local) bound.port = port_of(*local);
  }
  Listener listener(std::move(fd), std::move(bound));
  if (::listen(listener.fd(), kBacklog) != 0) return system_error(where, errno, Errc::kConnect);
  return listener;
}

Listener::~Listener() {
  if (fd_ && endpoint_.is_unix()) ::unlink(endpoint_.unix_path.c_str());
}

Result<std::optional<Accepted>> Listener::accept() {
  Address peer;
  peer.length = sizeof peer.storage;
  UniqueFd fd(::accept4(this->fd(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.length,
                        SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return system_error("accept", errno);
    }
    return std::optional<Accepted>();  // none, or one that has gone already
  }
  peer.storage.ss_family = static_cast<sa_family_t>(endpoint_.is_unix() ? AF_UNIX : peer.family());
  std::string text = endpoint_.is_unix() ? "unix:" + endpoint_.unix_path : peer.text();
  return std::optional<Accepted>({adopt_stream(std::move(fd), peer), std::move(text)});
}

}  // namespace kvferry::net
