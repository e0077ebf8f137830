// kvferry-link: a network link with a round-trip time, between this network namespace and one of
// its own, where the server is to be started: real TCP, with handshakes, windows and slow start.
//
// A TUN device at each end; this program carries packets from one to the other, each half of the
// round trip after it came. Segmentation is left to the ends, so a packet is up to 64 KiB of what
// TCP takes for segments of the MTU. When a queue is full its device is not read, and drops.
//
// The first line on stdout is the address of the far end; its namespace is that of this process
// (nsenter --target PID --net). Then see LinkControl. Devices and namespace are held by open files
// and processes alone, so nothing of it is left however the process ends. One thread. Needs root.

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "bench/link_control.hpp"
#include "bench/options.hpp"

namespace {

using kvferry::kNever;
using kvferry::kSecond;
using kvferry::monotonic_ns;
using kvferry::Nanos;
using kvferry::UniqueFd;
using kvferry::bench::CommandReader;
using kvferry::bench::die_errno;
using kvferry::bench::LinkControl;
using kvferry::bench::Options;

constexpr const char* kManual =
    "kvferry-link --rtt-ms MS [options]\n"
    "  --network N   the link is 198.18.N.0/30 (0)\n"
    "  --mtu BYTES   of both devices (1500)\n"
    "  --log FILE    a line for each command that leaves this end\n";

constexpr std::size_t kHeadBytes = 10;  // virtio_net_hdr, in front of each packet of a device
constexpr std::size_t kPacketBytesMax = kHeadBytes + 65536 + 64;
constexpr std::size_t kQueueBytes = std::size_t{128} << 20;  // each way: delay x bandwidth
constexpr int kTurnsMax = 64;
constexpr int kDevicePackets = 4096;

void interface(int socket, unsigned long request, ifreq& what) {
  if (::ioctl(socket, request, &what) != 0) die_errno("a network device");
}

ifreq named(const char* name) {
  ifreq what{};
  std::strncpy(what.ifr_name, name, IFNAMSIZ - 1);
  return what;
}

void bring_up(int socket, const char* name) {
  ifreq what = named(name);
  interface(socket, SIOCGIFFLAGS, what);
  what.ifr_flags |= IFF_UP;
  interface(socket, SIOCSIFFLAGS, what);
}

void set_address(int socket, unsigned long request, const char* name, const std::string& text) {
  ifreq what = named(name);
  auto* const address = reinterpret_cast<sockaddr_in*>(&what.ifr_addr);
  address->sin_family = AF_INET;
  ::inet_pton(AF_INET, text.c_str(), &address->sin_addr);
  interface(socket, request, what);
}

// A TUN device in the namespace in which we are.
UniqueFd open_device(const std::string& address, int mtu) {
  UniqueFd fd(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0) die_errno("/dev/net/tun");
  ifreq what = named("kvflink%d");
  what.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  if (::ioctl(fd.get(), TUNSETIFF, &what) != 0) die_errno("TUN device");
  if (::ioctl(fd.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0) die_errno("TUN offload");
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const std::string name = what.ifr_name;
  set_address(socket.get(), SIOCSIFADDR, name.c_str(), address);
  set_address(socket.get(), SIOCSIFNETMASK, name.c_str(), "255.255.255.252");
  what = named(name.c_str());
  what.ifr_mtu = mtu;
  interface(socket.get(), SIOCSIFMTU, what);
  what = named(name.c_str());
  what.ifr_qlen = kDevicePackets;
  interface(socket.get(), SIOCSIFTXQLEN, what);
  bring_up(socket.get(), name.c_str());
  return fd;
}

// Payload of TCP in a packet of a device; size 0: none.
struct Payload {
  std::uint16_t from_port = 0;
  std::uint32_t sequence = 0;
  bool opens = false;
  const char* bytes = nullptr;
  std::size_t size = 0;
};

Payload payload_of(const char* packet, std::size_t size) {
  Payload found;
  const char* const start = packet + kHeadBytes;
  const char* const end = packet + size;
  iphdr ip;
  tcphdr tcp;
  if (size < kHeadBytes + sizeof ip + sizeof tcp) return found;
  std::memcpy(&ip, start, sizeof ip);
  const char* const segment = start + std::size_t{ip.ihl} * 4;
  if (ip.version != 4 || ip.protocol != IPPROTO_TCP || segment + sizeof tcp > end) return found;
  std::memcpy(&tcp, segment, sizeof tcp);
  found.bytes = segment + std::size_t{tcp.doff} * 4;
  found.from_port = ntohs(tcp.source);
  found.sequence = ntohl(tcp.seq);
  found.opens = tcp.syn != 0;
  found.size = found.bytes < end ? static_cast<std::size_t>(end - found.bytes) : 0;
  return found;
}

// The commands of all connections of one direction, put in order.
class Commands {
 public:
  explicit Commands(kvferry::bench::WireLog& log) : log_(log) {}

  void take(const Payload& payload, Nanos now) {
    if (payload.opens) {
      flows_.insert_or_assign(payload.from_port,
                              Flow{payload.sequence + 1, CommandReader(log_, ++opened_)});
    }
    const auto found = flows_.find(payload.from_port);
    if (found == flows_.end() || payload.size == 0) return;
    Flow& flow = found->second;
    const auto ahead = static_cast<std::int32_t>(payload.sequence - flow.next);
    if (ahead > 0) flow.reader.lose();  // cannot be: a device keeps the order
    const auto seen = static_cast<std::size_t>(ahead < 0 ? -std::int64_t{ahead} : 0);
    if (ahead > 0 || seen >= payload.size) return;  // sent again
    flow.reader.take({payload.bytes + seen, payload.size - seen}, now);
    flow.next = payload.sequence + static_cast<std::uint32_t>(payload.size);
  }

 private:
  struct Flow {
    std::uint32_t next;
    CommandReader reader;
  };
  kvferry::bench::WireLog& log_;
  std::uint64_t opened_ = 0;
  std::map<std::uint16_t, Flow> flows_;
};

// Packets on their way in one direction, in one piece of memory that is used in a circle.
class Queue {
 public:
  // Where the next packet may be read to; null: full.
  char* room() {
    if (packets_.empty()) end_ = 0;
    const std::size_t first = packets_.empty() ? kQueueBytes : packets_.front().at;
    if (end_ >= first || packets_.empty()) {
      if (end_ + kPacketBytesMax <= kQueueBytes) return memory_.get() + end_;
      if (kPacketBytesMax >= first) return nullptr;
      end_ = 0;
    }
    return end_ + kPacketBytesMax < first ? memory_.get() + end_ : nullptr;
  }
  void push(std::size_t size, Nanos due) {
    packets_.push_back({due, end_, size});
    end_ += (size + 63) / 64 * 64;
  }
  [[nodiscard]] Nanos due() const { return packets_.empty() ? kNever : packets_.front().due; }
  void deliver(int fd, Nanos now) {
    while (due() <= now) {
      const Packet& packet = packets_.front();
      // What a device does not take is lost, as in any network; TCP sends it again.
      (void)!::write(fd, memory_.get() + packet.at, packet.size);
      packets_.pop_front();
    }
  }

 private:
  struct Packet {
    Nanos due;
    std::size_t at;
    std::size_t size;
  };
  std::unique_ptr<char[]> memory_{new char[kQueueBytes]};  // touched where it is used
  std::size_t end_ = 0;
  std::deque<Packet> packets_;
};

class Link {
 public:
  explicit Link(const Options& options) : control_(options), commands_(control_.log) {
    const std::string network = "198.18." + options.text("--network") + ".";
    const int mtu = static_cast<int>(options.number("--mtu"));
    near_ = open_device(network + "1", mtu);
    if (::unshare(CLONE_NEWNET) != 0) die_errno("a network namespace");
    const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    bring_up(socket.get(), "lo");
    far_ = open_device(network + "2", mtu);
    ::prctl(PR_SET_TIMERSLACK, 1);
    std::printf("%s2\n", network.c_str());
    std::fflush(stdout);
  }

  void run() {
    for (;;) {
      pollfd polled[] = {{STDIN_FILENO, POLLIN, 0},
                         {near_.get(), static_cast<short>(up_.room() ? POLLIN : 0), 0},
                         {far_.get(), static_cast<short>(down_.room() ? POLLIN : 0), 0}};
      const Nanos first = std::min(up_.due(), down_.due());
      const Nanos wait = first == kNever ? kSecond : std::max<Nanos>(0, first - monotonic_ns());
      const timespec limit{wait / kSecond, wait % kSecond};
      if (::ppoll(polled, 3, &limit, nullptr) < 0 && errno != EINTR) die_errno("poll");
      if (polled[0].revents != 0 && !control_.listen()) return;
      if (polled[1].revents != 0) take(near_.get(), up_, true);
      if (polled[2].revents != 0) take(far_.get(), down_, false);
      const Nanos now = monotonic_ns();
      up_.deliver(far_.get(), now);
      down_.deliver(near_.get(), now);
    }
  }

 private:
  void take(int fd, Queue& queue, bool up) {
    for (int turn = 0; turn < kTurnsMax; ++turn) {
      char* const place = queue.room();
      const ssize_t size = place == nullptr ? 0 : ::read(fd, place, kPacketBytesMax);
      if (size <= 0) return;
      const Nanos now = monotonic_ns();
      const auto bytes = static_cast<std::size_t>(size);
      const Payload payload = payload_of(place, bytes);
      if (up) commands_.take(payload, now);
      (up ? control_.up : control_.down) += payload.size;
      queue.push(bytes, now + control_.rtt / 2);
    }
  }

  LinkControl control_;
  Commands commands_;
  UniqueFd near_;
  UniqueFd far_;
  Queue up_;
  Queue down_;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options(argc, argv, kManual,
                        {{"--rtt-ms", "0"}, {"--network", "0"}, {"--mtu", "1500"}, {"--log", ""}},
                        {});
  Link(options).run();
  return 0;
}
