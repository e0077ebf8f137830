#pragma once
// What the tests of the node share: a small store, and sessions without sockets.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "node/session.hpp"
#include "node/value_store.hpp"

namespace kvferry::node {

inline constexpr std::size_t kTestPage = 4 * kKiB;

inline std::unique_ptr<ValueStore> test_store(std::size_t pages, Changes* changes = nullptr,
                                              const std::string& policy = "LRU") {
  auto store = ValueStore::create({.size_bytes = pages * kTestPage,
                                   .page_size_bytes = kTestPage,
                                   .policy = policy,
                                   .arena = {.hugetlb = false, .prefault = false}},
                                  changes);
  EXPECT_TRUE(store.has_value());
  return std::move(*store);
}

inline void fill(const StoredValue& value, std::string_view text) {
  for (std::size_t offset = 0; offset < text.size();) {
    const MutableBytes piece = value.piece(offset);
    std::memcpy(piece.data(), text.data() + offset, piece.size());
    offset += piece.size();
  }
}

inline std::string content(const StoredValue& value) {
  std::string out;
  while (out.size() < value.size_bytes()) out += as_text(value.piece(out.size()));
  return out;
}

// False: there was no room.
inline bool put(Values& store, std::string_view key, std::string_view text, UnixMs now = 0,
                WriteOptions options = {}) {
  auto value = store.reserve(text.size());
  if (!value) return false;
  fill(**value, text);
  return store.commit(key, std::move(*value), options, now);
}

inline std::string stored(Values& store, std::string_view key, UnixMs now = 0) {
  const ValuePtr value = store.hold(key, now);
  return value == nullptr ? "(none)" : content(*value);
}

// A node without sockets: a store, and as many sessions as a test likes.
struct TestNode {
  explicit TestNode(std::size_t pages = 64, std::vector<UserOptions> users = {},
                    SessionLimits limits = {}, std::size_t in_flight_max = SIZE_MAX)
      : access(*Access::create(users)),
        clients(100, limits.announced_bytes_max, limits.held_bytes_max),
        in_flight(in_flight_max),
        store(test_store(pages, &clients)),
        context{*store, access, clients, in_flight, counters, agent, limits, {.version = "1.2.3"}} {
  }

  Access access;
  Clients clients;
  Counters counters;
  Agent agent;
  InFlight in_flight;
  std::unique_ptr<ValueStore> store;
  Context context;
  UnixMs now = 1'000'000;
};

class TestSession {
 public:
  explicit TestSession(TestNode& node, bool on_unix = false)
      : node_(node),
        id(*node.clients.add("test:1", node.now, nullptr)),
        session(node.context, id, on_unix) {}

  // Sends `bytes` in pieces of at most `step`, as a driver would.
  void send(std::string_view bytes, std::size_t step = SIZE_MAX) {
    std::vector<std::byte> scratch(512);
    while (!bytes.empty() && session.wants_bytes()) {
      iovec pieces[8];
      const std::size_t count = session.plan(pieces, scratch);
      std::size_t moved = 0;
      for (std::size_t i = 0; i < count && !bytes.empty() && moved < step; ++i) {
        const std::size_t part = std::min({pieces[i].iov_len, bytes.size(), step - moved});
        std::memcpy(pieces[i].iov_base, bytes.data(), part);
        bytes.remove_prefix(part);
        moved += part;
        if (part < pieces[i].iov_len) break;
      }
      session.received(moved, node_.now);
      while (session.has_more()) session.resume(node_.now);
    }
    unread = bytes;
  }

  // All that it has to say, `step` bytes at a time.
  std::string take(std::size_t step = SIZE_MAX) {
    std::string out;
    while (session.unsent_bytes() > 0) {
      iovec pieces[4];
      const std::size_t count = session.gather(pieces);
      std::size_t moved = 0;
      for (std::size_t i = 0; i < count && moved < step; ++i) {
        const std::size_t part = std::min(pieces[i].iov_len, step - moved);
        out.append(static_cast<const char*>(pieces[i].iov_base), part);
        moved += part;
      }
      session.sent(moved, node_.now);
      while (session.has_more()) session.resume(node_.now);
    }
    return out;
  }

  std::string ask(std::string_view bytes) {
    send(bytes);
    return take();
  }
  // One command, as an array of bulks.
  std::string command(const std::vector<std::string>& words) { return ask(encoded(words)); }

  static std::string encoded(const std::vector<std::string>& words) {
    std::string out = "*" + std::to_string(words.size()) + "\r\n";
    for (const std::string& word : words) {
      out += "$" + std::to_string(word.size()) + "\r\n" + word + "\r\n";
    }
    return out;
  }

 private:
  TestNode& node_;

 public:
  const std::uint64_t id;
  Session session;
  std::string_view unread;  // of the last send()
};

}  // namespace kvferry::node
