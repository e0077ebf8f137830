// kvferry-delay: a TCP proxy that adds a round-trip time and takes no bandwidth away.
//
// Each piece of a delayed direction waits its own time from arrival, so pipelined traffic stays
// pipelined. By default the whole delay is on the request direction, and replies pass by splice()
// through a pipe, without a copy; with --split both directions wait half of it.
//
// One thread, one epoll, one timerfd. The port is the first line on stdout; then see LinkControl.
// The upstream is expected to be near: connecting to it is not delayed and blocks.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "bench/blocking_socket.hpp"
#include "bench/delay_flow.hpp"
#include "bench/link_control.hpp"
#include "bench/options.hpp"

namespace {

using kvferry::kNever;
using kvferry::monotonic_ns;
using kvferry::Nanos;
using kvferry::UniqueFd;
using kvferry::bench::CommandReader;
using kvferry::bench::DelayFlow;
using kvferry::bench::die_errno;
using kvferry::bench::Flow;
using kvferry::bench::LinkControl;
using kvferry::bench::Options;
using kvferry::bench::Socket;
using kvferry::bench::SpliceFlow;
using kvferry::bench::Step;

constexpr const char* kManual =
    "kvferry-delay --upstream-port P --rtt-ms MS [options]\n"
    "  --upstream-host H   the server (127.0.0.1)\n"
    "  --port P            where to listen on 127.0.0.1 (0: any free port)\n"
    "  --split             half of the delay each way (all of it on requests)\n"
    "  --log FILE          a line for each command\n";

constexpr int kTurnsMax = 16;  // of one direction before the others get theirs

struct Connection {
  Socket client;
  Socket server;
  std::unique_ptr<Flow> requests;
  std::unique_ptr<Flow> replies;
  bool broken = false;

  [[nodiscard]] bool over() const { return broken || (requests->ended() && replies->ended()); }
  // Returns whether work is left that needs no event.
  bool pump() {
    bool busy = false;
    for (Flow* flow : {requests.get(), replies.get()}) {
      Step step = Step::kProgress;
      const Nanos now = monotonic_ns();
      for (int turn = 0; turn < kTurnsMax && step == Step::kProgress && !flow->ended(); ++turn) {
        step = flow->step(now);
      }
      broken = broken || step == Step::kBroken;
      busy = busy || step == Step::kProgress;
    }
    return busy && !broken;
  }
};

class Proxy {
 public:
  explicit Proxy(const Options& options) : options_(options), control_(options) {
    poll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(options.number("--port")));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_.get(), any, size) != 0 || ::listen(listener_.get(), 256) != 0) {
      die_errno("listen");
    }
    ::getsockname(listener_.get(), any, &size);
    watch(listener_.get(), EPOLLIN, &listener_);
    watch(timer_.get(), EPOLLIN, &timer_);
    watch(STDIN_FILENO, EPOLLIN, nullptr);
    std::printf("%d\n", ntohs(address.sin_port));
    std::fflush(stdout);
  }

  void run() {
    std::array<epoll_event, 64> events;
    bool busy = false;
    for (;;) {
      const int count = ::epoll_wait(poll_.get(), events.data(), events.size(), busy ? 0 : -1);
      if (count < 0 && errno != EINTR) die_errno("epoll_wait");
      for (int i = 0; i < count; ++i) {
        const auto& event = events[static_cast<std::size_t>(i)];
        if (event.data.ptr == nullptr) {
          if (!control_.listen()) return;
        } else if (event.data.ptr == &listener_) {
          accept_all();
        } else if (event.data.ptr == &timer_) {
          std::uint64_t ticks;
          (void)!::read(timer_.get(), &ticks, sizeof ticks);
        } else {
          auto& socket = *static_cast<Socket*>(event.data.ptr);
          if ((event.events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
            socket.readable = true;
          }
          if ((event.events & (EPOLLOUT | EPOLLERR)) != 0) socket.writable = true;
        }
      }
      busy = false;
      for (const auto& connection : connections_) busy = connection->pump() || busy;
      std::erase_if(connections_, [](const auto& connection) { return connection->over(); });
      if (!busy) arm();
    }
  }

 private:
  void watch(int fd, std::uint32_t events, void* who) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = who;
    if (::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      die_errno(who == nullptr ? "stdin must be a pipe or a terminal" : "epoll_ctl");
    }
  }

  void accept_all() {
    for (;;) {
      const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) return;
      auto added = std::make_unique<Connection>();
      Connection& c = *added;
      c.client.fd = UniqueFd(fd);
      c.server.fd = kvferry::bench::dial_tcp(options_.text("--upstream-host"),
                                             options_.text("--upstream-port"));
      ::fcntl(c.server.fd.get(), F_SETFL, O_NONBLOCK);
      kvferry::bench::set_nodelay(fd);
      const int parts = options_.has("--split") ? 2 : 1;
      c.requests =
          std::make_unique<DelayFlow>(c.client, c.server, control_.up, control_.rtt, parts,
                                      std::make_unique<CommandReader>(control_.log, ++accepted_));
      if (parts == 2) {
        c.replies =
            std::make_unique<DelayFlow>(c.server, c.client, control_.down, control_.rtt, parts);
      } else {
        c.replies = std::make_unique<SpliceFlow>(c.server, c.client, control_.down);
      }
      for (Socket* socket : {&c.client, &c.server}) {
        watch(socket->fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, socket);
      }
      connections_.push_back(std::move(added));
    }
  }

  // Sets the timer to the earliest piece that waits only for its time.
  void arm() {
    Nanos first = kNever;
    for (const auto& c : connections_) {
      first = std::min({first, c->requests->due(), c->replies->due()});
    }
    itimerspec when{};
    if (first != kNever) {
      when.it_value = {.tv_sec = first / kvferry::kSecond, .tv_nsec = first % kvferry::kSecond};
    }
    ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
  }

  const Options& options_;
  LinkControl control_;
  std::uint64_t accepted_ = 0;
  UniqueFd poll_;
  UniqueFd timer_;
  UniqueFd listener_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options(argc, argv, kManual,
                        {{"--upstream-host", "127.0.0.1"},
                         {"--upstream-port", "6379"},
                         {"--port", "0"},
                         {"--rtt-ms", "1"},
                         {"--log", ""}},
                        {"--split"});
  std::signal(SIGPIPE, SIG_IGN);  // splice() has no MSG_NOSIGNAL
  Proxy(options).run();
  return 0;
}
