#pragma once
// Clients: everybody who is connected: what CLIENT LIST shows, who is told of which changes, and
// who is to go.
//
// Announcements wait here until the client's own thread takes them. Who takes none loses his
// connection after announced_bytes_max of them, because what he knows would be wrong without them.
//
// All connections together have held_bytes_max of memory beside the pages of values: for replies
// that wait, announcements and arguments. When it is exceeded the hungriest goes: who holds most,
// for longest. So does, when all places are taken, who has not said a command for longest since he
// connected.
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
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "node/mailbox.hpp"
#include "node/values.hpp"

namespace kvferry::node {

struct ClientEntry {
  std::uint64_t id = 0;
  std::string address;
  UnixMs since = 0;
  std::string name{}, user{};
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
  // What a connection holds, and since when it has not moved on; see NodeWorker.
  struct Held {
    std::size_t bytes = 0;       // of memory
    std::size_t page_bytes = 0;  // of values in pages, which nobody can evict meanwhile
    Nanos since = 0;
  };
  static constexpr std::size_t kKeyCost = 64;
  static constexpr Nanos kStalled = kSecond;  // before this nobody loses anything for his pages

  Clients(std::size_t connections_max, std::size_t announced_bytes_max,
          std::size_t held_bytes_max) noexcept
      : connections_max_(connections_max),
        announced_bytes_max_(announced_bytes_max),
        held_bytes_max_(held_bytes_max) {}

  // Its number; nothing: there are too many. `mailbox` (null: a test) outlives it.
  std::optional<std::uint64_t> add(std::string_view address, UnixMs now, Mailbox* mailbox);
  void remove(std::uint64_t id);
  // It has said a command.
  void spoke(std::uint64_t id);
  // Ends up to `count` of those who have not, the oldest first.
  void drop_silent(std::size_t count);

  void hold(std::uint64_t id, const Held& held, Nanos now);
  // Pages are wanted that cannot be had: the hungriest of those who stalled goes, if there is one.
  void relieve(Nanos now);
  [[nodiscard]] std::size_t held_bytes() const;
  // How many had to go so.
  [[nodiscard]] std::uint64_t hungry_closed() const noexcept {
    return hungry_closed_.load(std::memory_order_relaxed);
  }

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

  [[nodiscard]] std::size_t connections_max() const noexcept { return connections_max_; }

 private:
  struct Entry {
    ClientEntry facts;
    Mailbox* mailbox = nullptr;
    News news;
    std::size_t news_bytes = 0;
    std::size_t prefix_bytes = 0;
    Held held{};
    bool posted = false;
    bool doomed = false;  // its thread ends it soon, and it counts no more

    [[nodiscard]] std::size_t waiting_bytes() const noexcept { return held.bytes + news_bytes; }
    [[nodiscard]] std::size_t bytes() const noexcept { return waiting_bytes() + prefix_bytes; }
  };

  static void post(Entry& entry);
  void doom(Entry& entry);
  void hungriest_goes();
  void count_bytes(const Entry& entry, std::size_t before) noexcept;

  const std::size_t connections_max_;
  const std::size_t announced_bytes_max_;
  const std::size_t held_bytes_max_;
  std::atomic<std::uint64_t> hungry_closed_{0};  // relaxed: for reports
  // Who changes a key looks here first. Relaxed: a client that begins to track hears of what
  // changes after the answer to that, and that answer came through the mutex.
  std::atomic<std::size_t> tracking_{0};
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Entry> entries_;
  std::set<std::uint64_t> silent_;
  std::size_t doomed_ = 0;
  std::size_t held_bytes_ = 0;
  Nanos now_ = 0;  // when somebody told last what he holds
  std::uint64_t next_id_ = 1;
};

}  // namespace kvferry::node
