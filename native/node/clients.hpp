#pragma once
// Clients: everybody who is connected: what CLIENT LIST shows, who is told of which changes, and
// who is to go.
//
// Announcements wait here until the client's own thread takes them. Who takes none loses his
// connection after announced_bytes_max of them, because what he knows would be wrong without them.
//
// Threads: every call from any thread; one mutex. A thread that changed something appends to the
// clients that want to know, and posts to their mailboxes.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "node/mailbox.hpp"
#include "node/values.hpp"

namespace kvferry::node {

struct ClientEntry {
  std::uint64_t id = 0;
  std::string address;
  UnixMs since = 0;
  std::string name{}, library{}, library_version{}, user{};
  int protocol = 2;
  std::vector<std::string> prefixes{};  // of the keys that it tracks

  [[nodiscard]] bool tracking() const noexcept { return !prefixes.empty(); }
};

class Clients final : public Changes {
 public:
  struct News {
    bool killed = false;
    bool cleared = false;  // before the keys
    std::vector<std::string> keys;
  };
  static constexpr std::size_t kKeyCost = 64;

  Clients(std::size_t connections_max, std::size_t announced_bytes_max) noexcept
      : connections_max_(connections_max), announced_bytes_max_(announced_bytes_max) {}

  // Its number; nothing: there are too many. `mailbox` (null: a test) outlives it.
  std::optional<std::uint64_t> add(std::string_view address, UnixMs now, Mailbox* mailbox);
  void remove(std::uint64_t id);

  // Changes what is known of a client.
  void update(std::uint64_t id, const std::function<void(ClientEntry&)>& change);
  [[nodiscard]] std::vector<ClientEntry> list() const;
  [[nodiscard]] std::size_t count() const;
  [[nodiscard]] std::size_t tracking_count() const noexcept {
    return tracking_.load(std::memory_order_relaxed);
  }
  // False: no such client.
  bool kill(std::uint64_t id);
  News take(std::uint64_t id);

  void changed(const std::vector<std::string>& keys) override;
  void cleared() override;

  [[nodiscard]] std::size_t connections_max() const noexcept {
    return connections_max_.load(std::memory_order_relaxed);
  }
  void set_connections_max(std::size_t count) noexcept {
    connections_max_.store(count, std::memory_order_relaxed);
  }

 private:
  struct Entry {
    ClientEntry facts;
    Mailbox* mailbox = nullptr;
    News news;
    std::size_t news_bytes = 0;
    bool posted = false;
  };

  static void post(Entry& entry);

  std::atomic<std::size_t> connections_max_;
  const std::size_t announced_bytes_max_;
  // Who changes a key looks here first. Relaxed: a client that begins to track hears of what
  // changes after the answer to that, and that answer came through the mutex.
  std::atomic<std::size_t> tracking_{0};
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Entry> entries_;
  std::uint64_t next_id_ = 1;
};

}  // namespace kvferry::node
