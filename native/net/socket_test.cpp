// Poller and Stream over real sockets of this host: TCP on loopback and Unix.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/event_fd.hpp"
#include "net/poller.hpp"
#include "net/stream.hpp"

namespace kvferry::net {
namespace {

constexpr Nanos kPatience = 5 * kSecond;

// A listening socket, of TCP on loopback or at a Unix path of its own.
class Listener {
 public:
  explicit Listener(int family) : fd_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage name{};
    socklen_t length = 0;
    if (family == AF_UNIX) {
      path_ = testing::TempDir() + "kvferry-" + std::to_string(::getpid()) + ".sock";
      ::unlink(path_.c_str());
      auto& unix_name = reinterpret_cast<sockaddr_un&>(name);
      unix_name.sun_family = AF_UNIX;
      path_.copy(unix_name.sun_path, sizeof unix_name.sun_path - 1);
      length = sizeof unix_name;
    } else {
      auto& ip_name = reinterpret_cast<sockaddr_in&>(name);
      ip_name.sin_family = AF_INET;
      ip_name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      length = sizeof ip_name;
    }
    auto* raw = reinterpret_cast<sockaddr*>(&name);
    EXPECT_EQ(::bind(fd_.get(), raw, length), 0) << std::strerror(errno);
    EXPECT_EQ(::listen(fd_.get(), 4), 0);
    EXPECT_EQ(::getsockname(fd_.get(), raw, &length), 0);
    if (family == AF_UNIX) {
      endpoint_.unix_path = path_;
    } else {
      endpoint_.host = "127.0.0.1";
      endpoint_.port = ntohs(reinterpret_cast<sockaddr_in&>(name).sin_port);
    }
  }
  ~Listener() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  [[nodiscard]] Address address() const { return resolve(endpoint_)->front(); }
  [[nodiscard]] UniqueFd accept() const { return UniqueFd(::accept(fd_.get(), nullptr, nullptr)); }
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::string path_;
  Endpoint endpoint_;
};

Poller make_poller() {
  auto poller = Poller::open();
  EXPECT_TRUE(poller);
  return std::move(*poller);
}

// Waits until the stream is connected, or says why it is not.
IoResult connected(Poller& poller, Stream& stream) {
  EXPECT_TRUE(poller.watch(stream.fd(), 1, false, true));
  IoResult result{.state = IoState::kWouldBlock};
  while (result.state == IoState::kWouldBlock) {
    if (poller.wait(kPatience).empty()) break;
    result = stream.finish_connect();
  }
  return result;
}

iovec piece(std::string& memory) { return {memory.data(), memory.size()}; }

TEST(Poller, TellsWhatIsReadyByItsToken) {
  Poller poller = make_poller();
  auto first = EventFd::open();
  auto second = EventFd::open();
  ASSERT_TRUE(poller.watch(first->fd(), 7, true, false));
  ASSERT_TRUE(poller.watch(second->fd(), UINT64_MAX, true, false));
  EXPECT_TRUE(poller.wait(0).empty());
  second->signal();
  auto ready = poller.wait(kNever);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].token, UINT64_MAX);
  EXPECT_TRUE(ready[0].readable);
  EXPECT_FALSE(ready[0].writable);
  EXPECT_EQ(poller.wait(0).size(), 1u) << "level triggered: it is told until it is read";
  second->clear();
  EXPECT_TRUE(poller.wait(0).empty());
  first->signal();
  second->signal();
  EXPECT_EQ(poller.wait(kPatience).size(), 2u);
  poller.forget(first->fd());
  ready = poller.wait(kPatience);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].token, UINT64_MAX);
}

TEST(Poller, WatchChangesWhatIsWatched) {
  Poller poller = make_poller();
  auto event = EventFd::open();
  ASSERT_TRUE(poller.watch(event->fd(), 1, true, false));
  ASSERT_TRUE(poller.watch(event->fd(), 2, false, true));
  const auto ready = poller.wait(kPatience);
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].token, 2u);
  EXPECT_TRUE(ready[0].writable);
  const Outcome refused = poller.watch(-1, 3, true, false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kSystem);
}

TEST(Poller, WaitsNoLongerThanTold) {
  Poller poller = make_poller();
  const Nanos before = monotonic_ns();
  EXPECT_TRUE(poller.wait(3 * kMilli).empty());
  EXPECT_GE(monotonic_ns() - before, 3 * kMilli);
  EXPECT_TRUE(poller.wait(-kSecond).empty()) << "a moment that has passed is no wait";
  EXPECT_LT(monotonic_ns() - before, kPatience);
}

TEST(Stream, HasRoomForMoreThanTheFirstRoundTripsOfAServerFarAway) {
  const Listener listener(AF_INET);
  Poller poller = make_poller();
  auto opened = open_stream(listener.address());
  ASSERT_TRUE(opened);
  ASSERT_EQ(connected(poller, **opened).state, IoState::kOk);
  int room = 0;
  int low_water = 0;
  socklen_t length = sizeof room;
  ASSERT_EQ(::getsockopt((*opened)->fd(), SOL_SOCKET, SO_RCVBUF, &room, &length), 0);
  ASSERT_EQ(::getsockopt((*opened)->fd(), SOL_SOCKET, SO_RCVLOWAT, &low_water, &length), 0);
  EXPECT_GE(room, 1 << 20) << "BBR took 64 KiB for the capacity of the path";
  EXPECT_EQ(low_water, 1);
}

class StreamOver : public testing::TestWithParam<int> {};

TEST_P(StreamOver, MovesBytesBothWaysInPieces) {
  const Listener listener(GetParam());
  Poller poller = make_poller();
  auto opened = open_stream(listener.address());
  ASSERT_TRUE(opened);
  Stream& stream = **opened;
  ASSERT_EQ(connected(poller, stream).state, IoState::kOk);
  const UniqueFd peer = listener.accept();
  ASSERT_TRUE(peer);

  std::string head = "head:";
  std::string body = "body";
  const std::array<iovec, 2> out{piece(head), piece(body)};
  EXPECT_EQ(stream.send(out).bytes, 9u);
  std::string seen(9, '\0');
  EXPECT_EQ(::recv(peer.get(), seen.data(), seen.size(), MSG_WAITALL), 9);
  EXPECT_EQ(seen, "head:body");

  std::string first(3, '.');
  std::string second(10, '.');
  const std::array<iovec, 2> in{piece(first), piece(second)};
  EXPECT_EQ(stream.receive(in).state, IoState::kWouldBlock);
  ASSERT_EQ(::send(peer.get(), "abcdef", 6, 0), 6);
  ASSERT_TRUE(poller.watch(stream.fd(), 1, true, false));
  ASSERT_EQ(poller.wait(kPatience).size(), 1u);
  const IoResult got = stream.receive(in);
  EXPECT_EQ(got.state, IoState::kOk);
  EXPECT_EQ(got.bytes, 6u);
  EXPECT_EQ(first + second, "abcdef.......");
}

TEST_P(StreamOver, AFullPeerBlocksAndAClosedOneEnds) {
  const Listener listener(GetParam());
  Poller poller = make_poller();
  auto opened = open_stream(listener.address());
  ASSERT_TRUE(opened);
  Stream& stream = **opened;
  ASSERT_EQ(connected(poller, stream).state, IoState::kOk);
  UniqueFd peer = listener.accept();
  std::string large(1 << 20, 'x');
  const iovec out = piece(large);
  IoResult sent;
  std::size_t total = 0;
  while ((sent = stream.send({&out, 1})).state == IoState::kOk && total < (1u << 30)) {
    total += sent.bytes;
  }
  EXPECT_EQ(sent.state, IoState::kWouldBlock);
  EXPECT_GT(total, 0u);
  ::shutdown(peer.get(), SHUT_WR);
  ASSERT_TRUE(poller.watch(stream.fd(), 1, true, false));
  ASSERT_EQ(poller.wait(kPatience).size(), 1u);
  const iovec in = piece(large);
  EXPECT_EQ(stream.receive({&in, 1}).state, IoState::kClosed);
  peer.reset();
  ASSERT_TRUE(poller.watch(stream.fd(), 1, true, true));
  ASSERT_EQ(poller.wait(kPatience).size(), 1u);
  EXPECT_EQ(stream.send({&out, 1}).state, IoState::kFailed) << "and no signal ends the process";
}

TEST_P(StreamOver, AResetTakesBackWhatTheKernelStillHolds) {
  const Listener listener(GetParam());
  for (const bool forked : {false, true}) {
    Poller poller = make_poller();
    auto opened = open_stream(listener.address());
    ASSERT_TRUE(opened);
    ASSERT_EQ(connected(poller, **opened).state, IoState::kOk);
    const UniqueFd peer = listener.accept();
    // A child has it too: the last close() is then not ours.
    const UniqueFd copy(forked ? ::dup((*opened)->fd()) : -1);
    std::string large(1 << 20, 'x');
    const iovec out = piece(large);
    std::size_t sent = 0;
    for (IoResult io; (io = (*opened)->send({&out, 1})).state == IoState::kOk;) sent += io.bytes;
    (*opened)->reset();
    opened->reset();

    const timeval limit{.tv_sec = kPatience / kSecond, .tv_usec = 0};
    ::setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (GetParam() == AF_UNIX) continue;  // all that was sent is there
    std::size_t seen = 0;
    ssize_t count = 0;
    while ((count = ::recv(peer.get(), large.data(), large.size(), 0)) > 0) {
      seen += static_cast<std::size_t>(count);
    }
    EXPECT_EQ(count, -1) << "a proper end";
    EXPECT_EQ(errno, ECONNRESET);
    EXPECT_LT(seen, sent);
  }
}

TEST_P(StreamOver, ARefusalIsKnownAtOnceOrWhenConnecting) {
  Listener listener(GetParam());
  const Address address = listener.address();
  listener.close();
  Poller poller = make_poller();
  auto opened = open_stream(address);
  if (opened) {
    const IoResult result = connected(poller, **opened);
    EXPECT_EQ(result.state, IoState::kFailed);
    EXPECT_EQ(result.sys_errno, ECONNREFUSED);
  } else {
    EXPECT_EQ(opened.error().code, Errc::kConnect);
    EXPECT_NE(opened.error().context.find(address.text()), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Sockets, StreamOver, testing::Values(AF_INET, AF_UNIX),
                         [](const auto& family) {
                           return std::string(family.param == AF_INET ? "Tcp" : "Unix");
                         });

int send_buffer(int fd) {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length), 0);
  return bytes;
}

TEST(Stream, NothingPacesWhatStaysOnThisHost) {
  const Listener listener(AF_INET);
  const auto opened = open_stream(listener.address());
  ASSERT_TRUE(opened);
  const auto adopted = adopt_stream(listener.accept(), listener.address());
  for (const Stream* stream : {opened->get(), adopted.get()}) {
    std::array<char, 16> name{};
    socklen_t length = name.size();
    ASSERT_EQ(::getsockopt(stream->fd(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &length), 0);
    EXPECT_STREQ(name.data(), "reno");
  }
}

TEST(Stream, AUnixSocketHoldsHalfAMebibyteWhereTheKernelAllowsIt) {
  const Listener listener(AF_UNIX);
  std::ifstream limit("/proc/sys/net/core/wmem_max");
  int most = 0;
  ASSERT_TRUE(limit >> most);
  const auto opened = open_stream(listener.address());
  ASSERT_TRUE(opened);
  const auto adopted = adopt_stream(listener.accept(), listener.address());
  for (const Stream* stream : {opened->get(), adopted.get()}) {
    EXPECT_GE(send_buffer(stream->fd()), std::min(512 << 10, 2 * most));
  }
}

TEST(Stream, AnUnreachableUnixPathIsRefusedWithItsReason) {
  auto address = resolve({{}, 0, testing::TempDir() + "kvferry-no-such.sock"});
  ASSERT_TRUE(address);
  const auto opened = open_stream(address->front());
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Errc::kConnect);
}

}  // namespace
}  // namespace kvferry::net
