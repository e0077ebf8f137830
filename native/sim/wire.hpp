#pragma once
// Wire: one connection between the client and a node, as the network sees it: two pipes, what has
// arrived in each, and what has gone wrong. SimStream is the client's end of it.
//
// Lifetime: the network's; a wire is used again when both ends have let go of it.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "net/stream.hpp"
#include "sim/buffers.hpp"
#include "sim/journal.hpp"
#include "sim/plan.hpp"

namespace kvferry::sim {

// Bytes on their way in one direction.
class Pipe {
 public:
  void append(std::string_view bytes) { bytes_.append(bytes); }
  void append(const void* begin, std::size_t size) {
    bytes_.append(static_cast<const char*>(begin), size);
  }
  // The next `count` bytes reach the other end.
  void arrive(std::size_t count) noexcept { arrived_ += count; }
  [[nodiscard]] std::size_t travelling() const noexcept { return bytes_.size() - arrived_; }
  [[nodiscard]] std::string_view here() const noexcept {
    return std::string_view(bytes_).substr(taken_, arrived_ - taken_);
  }
  void take(std::size_t count) noexcept {
    taken_ += count;
    if (taken_ == bytes_.size()) clear();
  }
  void damage_last() noexcept { bytes_.back() = static_cast<char>(bytes_.back() ^ 1); }
  // What has not arrived never will.
  void cut() noexcept { bytes_.resize(arrived_); }
  void clear() noexcept {
    bytes_.clear();
    taken_ = arrived_ = 0;
  }

 private:
  std::string bytes_;
  std::size_t taken_ = 0;
  std::size_t arrived_ = 0;
};

// What the server knows of the connection.
struct Session {
  bool authenticated = false;
  bool asking = false;
  bool read_only = false;
  bool resp3 = false;
  std::size_t needed = 0;  // bytes of the next command, as far as it is known
  std::string held;        // planted: a reply that lets the next one pass
};

struct Wire {
  enum class State : std::uint8_t { kFree, kConnecting, kRefused, kOpen };
  State state = State::kFree;
  std::size_t node = 0;
  bool client_holds = false;
  bool node_holds = false;
  bool reset = false;  // the client's next call fails
  bool ended = false;  // the node sends nothing more
  Nanos frozen_until = 0;
  std::size_t room = 0;  // of the send buffer
  Pipe up;
  Pipe down;
  Session session;

  // Rounds of a handshake below RESP, as TLS has them.
  int rounds = 0;
  bool round_done = true;
  bool awaits_readable = false;
  bool established = false;  // as far as the client knows

  const void* watcher = nullptr;
  std::uint64_t token = 0;
  bool wants_readable = false;
  bool wants_writable = false;
  std::size_t low_water = 1;

  iovec remembered{};  // planted: memory of a batch that is used once more later

  [[nodiscard]] bool in_use() const noexcept { return client_holds || node_holds; }
  [[nodiscard]] bool frozen(Nanos now) const noexcept { return now < frozen_until; }
  [[nodiscard]] bool readable() const noexcept;
  [[nodiscard]] bool writable() const noexcept;
};

// What all streams of a schedule share.
struct StreamContext {
  Journal& journal;
  Random& random;
  Buffers& buffers;
  const Plan& plan;
  Plant plant;
};

class SimStream final : public net::Stream {
 public:
  SimStream(const StreamContext& context, Wire& wire, int fd) noexcept
      : context_(context), wire_(wire), fd_(fd) {}
  ~SimStream() override;
  SimStream(const SimStream&) = delete;
  SimStream& operator=(const SimStream&) = delete;

  [[nodiscard]] int fd() const noexcept override { return fd_; }
  net::IoResult finish_connect() noexcept override;
  [[nodiscard]] bool awaits_readable() const noexcept override { return wire_.awaits_readable; }
  net::IoResult receive(std::span<const iovec> pieces) noexcept override;
  net::IoResult send(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] std::size_t unsent_bytes() const noexcept override { return wire_.up.travelling(); }
  void set_receive_low_water(std::size_t bytes) noexcept override;
  void reset() noexcept override { wire_.up.cut(); }

 private:
  void plant_landing(std::span<const iovec> pieces) noexcept;
  void plant_sending(std::span<const iovec> pieces) noexcept;
  void check_lent(std::span<const iovec> pieces, const char* what) noexcept;

  const StreamContext& context_;
  Wire& wire_;
  const int fd_;
};

}  // namespace kvferry::sim
