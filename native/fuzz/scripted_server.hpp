#pragma once
// ScriptedServer: a small server in this process, whose every answer a test may replace.
//
// It listens on a free port of 127.0.0.1, or on a Unix socket, keeps values in a map and speaks
// enough RESP for the client. A script sees each command first: what it does not answer, the map
// answers.
// Threads: one that accepts and one for each connection, all joined by the destructor; the script
// runs on any of them. Limits: nothing is waited for longer than kPatience.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"

namespace kvferry::redis {

class ScriptedServer {
 public:
  static constexpr int kPatienceMs = 10'000;
  using Command = std::vector<std::string>;

  // One accepted connection, as a script sees it.
  class Peer {
   public:
    explicit Peer(UniqueFd fd) : fd_(std::move(fd)) {}

    // False: the client is gone.
    bool send(std::string_view bytes) const {
      while (!bytes.empty()) {
        const ssize_t count = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (count <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(count));
      }
      return true;
    }
    // Ends the connection in both directions; the next read of either side finds its end.
    void hang_up() const { ::shutdown(fd_.get(), SHUT_RDWR); }
    // "127.0.0.1:40000": where the client is. Requires: TCP.
    [[nodiscard]] std::string address() const {
      sockaddr_in name{};
      socklen_t length = sizeof name;
      ::getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&name), &length);
      return "127.0.0.1:" + std::to_string(ntohs(name.sin_port));
    }
    // Waits until there is something to read.
    bool await_bytes() const { return readable(); }
    // Waits until the client ends the connection. True: by a reset.
    bool wait_for_end() const {
      char bytes[4096];
      ssize_t count = 1;
      while (count > 0 && readable()) count = ::recv(fd_.get(), bytes, sizeof bytes, 0);
      return count < 0 && errno == ECONNRESET;
    }

   private:
    friend ScriptedServer;

    [[nodiscard]] bool readable() const {
      pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
      return ::poll(&entry, 1, kPatienceMs) == 1;
    }
    bool fill() {
      char bytes[65536];
      const ssize_t count = readable() ? ::recv(fd_.get(), bytes, sizeof bytes, 0) : -1;
      if (count > 0) held_.append(bytes, static_cast<std::size_t>(count));
      return count > 0;
    }
    // "*3" -> 3
    bool read_number(std::size_t& number) {
      std::size_t end = 0;
      while ((end = held_.find("\r\n")) == std::string::npos) {
        if (!fill()) return false;
      }
      number = std::stoul(held_.substr(1, end - 1));
      held_.erase(0, end + 2);
      return true;
    }
    bool read_command(Command& command) {
      std::size_t count = 0;
      if (!read_number(count)) return false;
      command.clear();
      for (std::size_t length = 0; count > 0; --count) {
        if (!read_number(length)) return false;
        while (held_.size() < length + 2) {
          if (!fill()) return false;
        }
        command.push_back(held_.substr(0, length));
        held_.erase(0, length + 2);
      }
      return true;
    }

    UniqueFd fd_;
    std::string held_;
  };

  // True: the command has been answered, or will not be.
  using Script = std::function<bool(Peer& peer, const Command& command)>;

  explicit ScriptedServer(Script script = {}) : script_(std::move(script)) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* raw = reinterpret_cast<sockaddr*>(&name);
    socklen_t length = sizeof name;
    if (::bind(listener_.get(), raw, length) != 0 || ::listen(listener_.get(), 64) != 0 ||
        ::getsockname(listener_.get(), raw, &length) != 0) {
      throw std::runtime_error(std::string("cannot listen: ") + std::strerror(errno));
    }
    port_ = ntohs(name.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ScriptedServer(Script script, std::string unix_path)
      : script_(std::move(script)), unix_path_(std::move(unix_path)) {
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    unix_path_.copy(name.sun_path, sizeof name.sun_path - 1);
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) != 0 ||
        ::listen(listener_.get(), 64) != 0) {
      throw std::runtime_error(std::string("cannot listen: ") + std::strerror(errno));
    }
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~ScriptedServer() {
    if (!unix_path_.empty()) ::unlink(unix_path_.c_str());
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (Peer& peer : peers_) peer.hang_up();
    for (std::thread& thread : threads_) thread.join();
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] int accepted() const noexcept { return accepted_.load(); }

  void put(const std::string& key, std::string value) {
    const std::lock_guard lock(mutex_);
    values_[key] = std::move(value);
  }
  [[nodiscard]] bool has(const std::string& key) {
    const std::lock_guard lock(mutex_);
    return values_.contains(key);
  }

 private:
  void accept_all() {
    for (;;) {
      UniqueFd fd(::accept(listener_.get(), nullptr, nullptr));
      if (!fd) return;
      const int no_delay = 1;
      ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof no_delay);
      accepted_.fetch_add(1);
      Peer& peer = peers_.emplace_back(std::move(fd));
      threads_.emplace_back([this, &peer] { serve(peer); });
    }
  }

  void serve(Peer& peer) {
    Command command;
    while (peer.read_command(command)) {
      if (!script_ || !script_(peer, command)) peer.send(answer(command));
    }
    peer.hang_up();
  }

  std::string answer(const Command& command) {
    const std::lock_guard lock(mutex_);
    const std::string& verb = command.front();
    if (verb == "HELLO") {
      return "%2\r\n$6\r\nserver\r\n$8\r\nscripted\r\n$7\r\nversion\r\n$1\r\n1\r\n";
    }
    if (verb == "PING") return "+PONG\r\n";
    if (verb == "SET") {
      values_[command[1]] = command[2];
      return "+OK\r\n";
    }
    if (verb == "GET") {
      const auto found = values_.find(command[1]);
      if (found == values_.end()) return "_\r\n";
      return "$" + std::to_string(found->second.size()) + "\r\n" + found->second + "\r\n";
    }
    if (verb == "DEL") return ":" + std::to_string(values_.erase(command[1])) + "\r\n";
    if (verb == "EXISTS" || verb == "TOUCH") {
      return ":" + std::to_string(values_.count(command[1])) + "\r\n";
    }
    return "+OK\r\n";
  }

  const Script script_;
  const std::string unix_path_{};
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::atomic<int> accepted_{0};
  std::mutex mutex_;  // guards values_
  std::map<std::string, std::string> values_;
  std::list<Peer> peers_;  // the acceptor's until it is joined
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace kvferry::redis
