// PresenceView inside a client, over a scripted server: threads, refusals, the end of the client.
#include "redis/presence/view.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/client_driver.hpp"
#include "fuzz/scripted_server.hpp"

namespace kvferry::redis {
namespace {

std::string bulk(const std::string& text) {
  return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
}

// Keys, and announcements of their changes: all by one lock, as a server does all on one thread.
class TrackingServer {
 public:
  explicit TrackingServer(std::string tracking_reply = "+OK\r\n", int protocol = 3)
      : tracking_reply_(std::move(tracking_reply)),
        protocol_(protocol),
        server_([this](auto& peer, const auto& words) { return answer(peer, words); }) {}

  [[nodiscard]] Config config() const {
    Config config;
    config.endpoint.host = "127.0.0.1";
    config.endpoint.port = server_.port();
    config.connections = 2;
    config.presence_prefix = "kv:";
    return config;
  }
  void hang_up() {
    const std::lock_guard lock(mutex_);
    if (view_ != nullptr) view_->hang_up();
    view_ = nullptr;
  }

 private:
  bool answer(ScriptedServer::Peer& peer, const ScriptedServer::Command& words) {
    const std::lock_guard lock(mutex_);
    if (words[0] == "HELLO") {
      if (protocol_ < 3) return peer.send("-ERR unknown command 'HELLO'\r\n");
      return peer.send("%1\r\n$5\r\nproto\r\n:3\r\n");
    }
    if (words[0] == "CLIENT" && words[1] == "TRACKING") {
      view_ = &peer;
      return peer.send(tracking_reply_);
    }
    if (words[0] == "SCAN") {
      std::string reply = "*2\r\n$1\r\n0\r\n*" + std::to_string(keys_.size()) + "\r\n";
      for (const std::string& key : keys_) reply += bulk(key);
      return peer.send(reply);
    }
    if (words[0] == "SET" || words[0] == "DEL") {
      words[0] == "SET" ? void(keys_.insert(words[1])) : void(keys_.erase(words[1]));
      if (view_ != nullptr) view_->send(">2\r\n" + bulk("invalidate") + "*1\r\n" + bulk(words[1]));
      return peer.send(words[0] == "SET" ? "+OK\r\n" : ":1\r\n");
    }
    if (words[0] == "EXISTS") return peer.send(keys_.contains(words[1]) ? ":1\r\n" : ":0\r\n");
    return false;
  }

  const std::string tracking_reply_;
  const int protocol_;
  std::mutex mutex_;  // guards what follows
  std::set<std::string> keys_;
  ScriptedServer::Peer* view_ = nullptr;  // whom to tell
  ScriptedServer server_;
};

Presence look_up(const Client& client, std::string_view key) {
  Presence answer{};
  client.presence()->look_up({&key, 1}, {&answer, 1});
  return answer;
}

bool becomes(const Client& client, std::string_view key, Presence wanted) {
  const Nanos until = monotonic_ns() + kPatience;
  while (look_up(client, key) != wanted) {
    if (monotonic_ns() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

std::string run(Client& client, Verb verb, const std::string& key, const std::string& value = "x") {
  std::vector<std::string> values{value};
  const auto batch = make_batch(verb, {key}, verb == Verb::kSet ? &values : nullptr);
  std::string outcome = run(client, batch);
  EXPECT_TRUE(batch->finished());
  return outcome;
}

TEST(PresenceView, ManyThreadsWriteAndAsk) {
  TrackingServer server;
  const auto client = open(server.config());
  ASSERT_TRUE(becomes(*client, "kv:none", Presence::kAbsent));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 100; ++i) {
        const std::string key = "kv:" + std::to_string(thread) + "." + std::to_string(i % 7);
        if (run(*client, Verb::kSet, key) == "OK") {
          for (int n = 0; n < 20; ++n) EXPECT_NE(look_up(*client, key), Presence::kAbsent) << key;
        }
        if (i % 3 == 0) run(*client, Verb::kDelete, key);
        if (i % 25 == 0) server.hang_up();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(run(*client, Verb::kSet, "kv:last"), "OK");
  EXPECT_EQ(run(*client, Verb::kDelete, "kv:0.1"), "OK");
  EXPECT_TRUE(becomes(*client, "kv:last", Presence::kProbable));
  EXPECT_TRUE(becomes(*client, "kv:0.1", Presence::kAbsent));
  EXPECT_TRUE(becomes(*client, "kv:none", Presence::kAbsent));
  client->close();
  EXPECT_EQ(look_up(*client, "kv:last"), Presence::kUnknown);
}

// How long the view takes to ask about keys that are written one after the other.
Nanos time_to_ask(std::size_t value_bytes) {
  constexpr std::uint64_t kKeys = 20;
  TrackingServer server;
  const auto client = open(server.config());
  EXPECT_TRUE(becomes(*client, "kv:none", Presence::kAbsent));
  const Nanos began = monotonic_ns();
  for (std::uint64_t i = 1; i <= kKeys; ++i) {
    EXPECT_EQ(run(*client, Verb::kSet, "kv:" + std::to_string(i), std::string(value_bytes, 'x')),
              "OK");
    while (client->presence()->stats().asked < i && monotonic_ns() < began + kPatience) {
      std::this_thread::yield();
    }
  }
  const Nanos took = monotonic_ns() - began;
  EXPECT_TRUE(becomes(*client, "kv:1", Presence::kProbable));
  EXPECT_TRUE(becomes(*client, "kv:" + std::to_string(kKeys), Presence::kProbable));
  return took;
}

TEST(PresenceView, LargeValuesOfAMomentAreAskedAboutTogether) {
  EXPECT_GE(time_to_ask(128 * kKiB), 15 * kMilli);  // 40, less those of which no bytes were seen
}

// What the log says of a view that cannot be.
std::string complaint(TrackingServer& server) {
  const auto client = open(server.config());
  std::string text;
  const Nanos until = monotonic_ns() + kPatience;
  while (text.empty() && monotonic_ns() < until) {
    std::uint64_t dropped = 0;
    for (const LogLine& line : client->log().drain(dropped)) {
      if (line.text.starts_with("presence view: "))
        text = line.text.substr(line.text.rfind(": ") + 2);
    }
    std::this_thread::yield();
  }
  EXPECT_EQ(run(*client, Verb::kSet, "kv:a"), "OK");
  EXPECT_EQ(look_up(*client, "kv:a"), Presence::kUnknown);
  EXPECT_EQ(look_up(*client, "kv:b"), Presence::kUnknown);
  return text;
}

TEST(PresenceView, RefusalsLeaveEverythingUnknown) {
  TrackingServer refusing("-NOPERM this user may not\r\n");
  EXPECT_EQ(complaint(refusing), "NOPERM this user may not");
  TrackingServer old("+OK\r\n", 2);
  EXPECT_EQ(complaint(old), "it has no RESP3, which announcements need");
}

TEST(PresenceView, ClosesWhileItDials) {
  TrackingServer server;
  for (int i = 0; i < 10; ++i) {
    const auto client = open(server.config());
    if (i % 2 == 0) {
      EXPECT_TRUE(becomes(*client, "kv:none", Presence::kAbsent));
    }
    const Nanos before = monotonic_ns();
    client->close();
    EXPECT_LT(monotonic_ns() - before, kPatience / 2);
  }
}

}  // namespace
}  // namespace kvferry::redis
