// Client over a scripted server: whole journeys, with faults. Every wait has a limit.
#include "redis/client.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/client_driver.hpp"
#include "fuzz/scripted_server.hpp"

namespace kvferry::redis {
namespace {

Config config_for(std::uint16_t port) {
  Config config = client_config(port);
  config.connect_timeout = config.stall_timeout = 2 * kSecond;  // a busy machine is no stall
  return config;
}

Server& only_node(Client& client) { return *client.router().nodes().at(0).server; }

std::string get(Client& client, const std::string& key, std::string& value) {
  std::vector<std::string> values{value};
  const std::string status = run(client, make_batch(Verb::kGet, {key}, &values));
  value = values.front();
  return status;
}

TEST(Client, MovesValuesBothWays) {
  ScriptedServer server;
  const auto client = open(config_for(server.port()));
  std::vector<std::string> written{"one", "", std::string(3'000'000, 'x')};
  const std::vector<std::string> keys{"a", "b", "c"};
  EXPECT_EQ(run(*client, make_batch(Verb::kSet, keys, &written)), "OK OK OK");
  std::vector<std::string> read{"...", "", std::string(3'000'000, '.'), "..."};
  EXPECT_EQ(run(*client, make_batch(Verb::kGet, {"a", "b", "c", "no"}, &read)), "OK OK OK MISS");
  read.pop_back();
  EXPECT_EQ(read, written);
  EXPECT_EQ(run(*client, make_batch(Verb::kExists, {"a", "no"})), "OK MISS");
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"no", "b"})), "MISS OK");
  EXPECT_EQ(run(*client, make_batch(Verb::kDelete, {"a", "a"})), "OK MISS");
  std::string other(2, '.');
  EXPECT_EQ(get(*client, "c", other), "SIZE_MISMATCH");
  EXPECT_EQ(only_node(*client).info().server, "scripted");
  EXPECT_EQ(client->running(), 0u);
}

TEST(Client, FramedValuesAreStripedAndCheckedAndBadOnesDeleted) {
  ScriptedServer server;
  const auto client = open(config_for(server.port()));
  const Batch::Options set{.verb = Verb::kSet, .framed = true, .identity = 1};
  const auto once = [&](Verb verb, std::uint64_t identity, const std::string& key,
                        std::string& value) {
    Batch::Options options = set;
    options.verb = verb;
    options.identity = identity;
    auto batch = std::make_shared<Batch>(options);
    batch->add(key, std::as_writable_bytes(std::span(value)));
    batch->quiet = true;
    return run(*client, batch);
  };
  std::string written(5 * kMiB, '\0');
  for (std::size_t i = 0; i < written.size(); i += 101) written[i] = static_cast<char>(i);
  ASSERT_EQ(once(Verb::kSet, 1, "large", written), "OK");
  EXPECT_TRUE(server.has("large") && server.has("large#1"));
  std::string read(written.size(), '.');
  EXPECT_EQ(once(Verb::kGet, 1, "large", read), "OK");
  EXPECT_EQ(read, written);
  server.put("large#1", "no frame");
  EXPECT_EQ(once(Verb::kGet, 1, "large", read), "CORRUPT");
  EXPECT_EQ(only_node(*client).stats().values_corrupt.load(), 1u);
  for (Nanos until = monotonic_ns() + kPatience; server.has("large#1") && monotonic_ns() < until;) {
    EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"large"})), "OK");
  }
  EXPECT_FALSE(server.has("large#1")) << "what is corrupt is deleted";
  EXPECT_EQ(once(Verb::kGet, 1, "large", read), "MISS");
}

TEST(Client, CompletionsComeThroughOneDescriptor) {
  ScriptedServer server;
  const auto client = open(config_for(server.port()));
  std::map<std::uint64_t, int> finished;
  for (int i = 0; i < 50; ++i) {
    const auto batch = make_batch(Verb::kTouch, {"k"});
    batch->quiet = false;
    const auto id = client->submit(batch);
    ASSERT_TRUE(id);
    finished[*id] = 0;
  }
  for (std::size_t seen = 0; seen < 50;) {
    pollfd entry{.fd = client->event_fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&entry, 1, 5000), 1);
    for (const auto& batch : client->drain()) {
      EXPECT_TRUE(batch->finished());
      ++finished[batch->id];
      ++seen;
    }
  }
  for (const auto& [id, times] : finished) EXPECT_EQ(times, 1) << id;
}

TEST(Client, AValueThatIsCutIsFetchedAgain) {
  std::atomic<int> cuts{0};
  ScriptedServer server([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "GET" || cuts.fetch_add(1) >= 2) return false;
    peer.send("$100000\r\n" + std::string(50'000, 'W'));
    peer.hang_up();
    return true;
  });
  const std::string stored(100'000, 'v');
  server.put("k", stored);
  const auto client = open(config_for(server.port()));
  std::string value(stored.size(), '.');
  EXPECT_EQ(get(*client, "k", value), "OK");
  EXPECT_EQ(value, stored);
  EXPECT_EQ(only_node(*client).stats().commands_retried.load(), 2u);
}

TEST(Client, ACommandThatBreaksEveryConnectionIsGivenUp) {
  ScriptedServer server([](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "GET") return false;
    peer.hang_up();
    return true;
  });
  Config config = config_for(server.port());
  config.attempts_max = 2;
  const auto client = open(config);
  std::string value(5, '.');
  const auto batch = make_batch(Verb::kGet, {"k"}, nullptr);
  EXPECT_EQ(run(*client, batch), "UNAVAILABLE");
  EXPECT_NE(batch->error().text.find("127.0.0.1"), std::string::npos) << batch->error().text;
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"k"})), "MISS") << "the client lives on";
}

TEST(Client, ADeafServerIsUnavailableSoonAndThenAtOnce) {
  std::atomic<bool> deaf{false};
  ScriptedServer server(
      [&](ScriptedServer::Peer&, const ScriptedServer::Command&) { return deaf.load(); });
  server.put("k", "hello");
  Config config = config_for(server.port());
  config.connect_timeout = config.stall_timeout = 500 * kMilli;
  const auto client = open(config);
  std::string value(5, '.');
  ASSERT_EQ(get(*client, "k", value), "OK");
  deaf = true;
  value = ".....";
  const Nanos asked = monotonic_ns();
  EXPECT_EQ(get(*client, "k", value), "UNAVAILABLE");
  EXPECT_LT(monotonic_ns() - asked, kPatience);
  EXPECT_EQ(value, ".....");
  for (Nanos until = monotonic_ns() + kPatience;
       only_node(*client).available() && monotonic_ns() < until;) {
    EXPECT_EQ(get(*client, "k", value), "UNAVAILABLE");
  }
  const Nanos again = monotonic_ns();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(*client, "k", value), "UNAVAILABLE");
  EXPECT_LT(monotonic_ns() - again, 5 * kSecond) << "20 times less than half a stall";
  deaf = false;
  std::string status;
  for (Nanos until = monotonic_ns() + kPatience; status != "OK" && monotonic_ns() < until;) {
    status = get(*client, "k", value);
  }
  EXPECT_EQ(status, "OK") << "it comes back by itself";
  EXPECT_EQ(value, "hello");
}

// What a half-dead way still holds of the first try would else arrive behind a newer value.
TEST(Client, AConnectionWhoseSetIsRepeatedIsReset) {
  std::promise<bool> first_ends;
  std::atomic<bool> first{true};
  ScriptedServer server([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "SET" || !first.exchange(false)) return false;
    first_ends.set_value(peer.wait_for_end());
    return true;
  });
  Config config = config_for(server.port());
  config.stall_timeout = kSecond;  // the second try is no stall, on a busy machine
  const auto client = open(config);
  std::vector<std::string> values{std::string(100'000, 'v')};
  EXPECT_EQ(run(*client, make_batch(Verb::kSet, {"k"}, &values)), "OK") << "on another one";
  EXPECT_TRUE(first_ends.get_future().get()) << "it was closed as if all were well";
  EXPECT_EQ(only_node(*client).stats().commands_retried.load(), 1u);
}

TEST(Client, AConnectionWhoseSetIsGivenUpIsReset) {
  for (const bool closed : {false, true}) {
    std::promise<void> asked;
    std::promise<bool> ends;
    std::atomic<bool> first{true};
    ScriptedServer server([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
      if (command[0] != "SET" || command[1] != "k" || !first.exchange(false)) return false;
      asked.set_value();
      ends.set_value(peer.wait_for_end());
      return true;
    });
    Config config = config_for(server.port());
    if (!closed) config.stall_timeout = 1500 * kMilli;
    const auto client = open(config);
    std::vector<std::string> values{std::string(100'000, 'v')};
    ASSERT_EQ(run(*client, make_batch(Verb::kSet, {"connects"}, &values)), "OK");
    const Nanos limit = closed ? kNever : monotonic_ns() + 1000 * kMilli;
    const auto batch = make_batch(Verb::kSet, {"k"}, &values, limit);
    ASSERT_TRUE(client->submit(batch));
    asked.get_future().wait();
    if (closed) client->close();
    EXPECT_EQ(outcome(*batch), closed ? "CANCELLED" : "TIMEOUT");
    EXPECT_TRUE(ends.get_future().get());
  }
}

TEST(Client, AConnectionThatOwesNothingIsClosedProperly) {
  std::promise<bool> ends;
  ScriptedServer server([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "SET") return false;
    peer.send("+OK\r\n");
    ends.set_value(peer.wait_for_end());
    return true;
  });
  const auto client = open(config_for(server.port()));
  std::vector<std::string> values{"v"};
  EXPECT_EQ(run(*client, make_batch(Verb::kSet, {"k"}, &values)), "OK");
  client->close();
  EXPECT_FALSE(ends.get_future().get());
}

TEST(Client, ARefusingPortIsUnavailable) {
  std::uint16_t port = 0;
  {
    const ScriptedServer gone;
    port = gone.port();
  }
  const auto client = open(config_for(port));
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"k"})), "UNAVAILABLE");
  EXPECT_NE(only_node(*client).down_error().context.find("127.0.0.1"), std::string::npos);
}

TEST(Client, WrongCredentialsAreUnavailableAndKeptSecret) {
  ScriptedServer server([](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "HELLO") return false;
    peer.send("-WRONGPASS invalid password " + command[4] + "\r\n");
    return true;
  });
  Config config = config_for(server.port());
  config.password = "hunter2";
  const auto client = open(config);
  const auto batch = make_batch(Verb::kTouch, {"k"});
  EXPECT_EQ(run(*client, batch), "UNAVAILABLE");
  EXPECT_NE(batch->error().text.find("WRONGPASS"), std::string::npos) << batch->error().text;
  EXPECT_EQ(batch->error().text.find("hunter2"), std::string::npos);
  std::uint64_t dropped = 0;
  for (const LogLine& line : client->log().drain(dropped)) {
    EXPECT_EQ(line.text.find("hunter2"), std::string::npos) << line.text;
  }
}

TEST(Client, ANameWithSeveralAddressesFindsTheOneThatListens) {
  ScriptedServer server;  // on 127.0.0.1 only; where the name has ::1 too, that one refuses
  Config config = config_for(server.port());
  config.endpoint.host = "localhost";
  const auto client = open(config);
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"k"})), "MISS");
}

// Answers the GET of "slow" with a part of its value, and with the rest on proceed().
class SlowServer {
 public:
  static constexpr std::size_t kSize = 100'000;

  SlowServer()
      : server_([this](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
          if (command[0] != "GET" || command[1] != "slow") return false;
          peer.send("$100000\r\n" + std::string(kSize / 2, 'v'));
          if (!asked_.exchange(true)) part_sent_.set_value();
          proceed_.wait();
          peer.send(std::string(kSize - kSize / 2, 'V') + "\r\n");
          return true;
        }) {}
  ~SlowServer() { proceed(); }

  [[nodiscard]] std::uint16_t port() const { return server_.port(); }
  void wait_for_part() { part_sent_.get_future().wait_for(std::chrono::seconds(10)); }
  void proceed() {
    if (!std::exchange(proceeds_, true)) go_.set_value();
  }

 private:
  std::promise<void> part_sent_;
  std::promise<void> go_;
  std::shared_future<void> proceed_ = go_.get_future().share();
  std::atomic<bool> asked_{false};
  bool proceeds_ = false;
  ScriptedServer server_;
};

TEST(Client, ACancelledBatchGivesItsMemoryBack) {
  SlowServer server;
  Config config = config_for(server.port());
  config.stall_timeout = kPatience;
  config.connections = 1;
  const auto client = open(config);
  std::vector<std::string> values{std::string(SlowServer::kSize, '.')};
  const auto batch = make_batch(Verb::kGet, {"slow"}, &values);
  const auto id = client->submit(batch);
  ASSERT_TRUE(id);
  server.wait_for_part();
  client->cancel(*id);
  client->cancel(*id + 1000);  // unknown: ignored
  ASSERT_TRUE(batch->wait(monotonic_ns() + kPatience));
  EXPECT_EQ(batch->commands()[0].status, Status::kCancelled);
  const std::string frozen = values.front();
  server.proceed();
  std::string other(3, '.');
  EXPECT_EQ(get(*client, "other", other), "MISS") << "behind the rest, on the same connection";
  EXPECT_EQ(values.front(), frozen);
  EXPECT_EQ(frozen.find('V'), std::string::npos);
  EXPECT_EQ(only_node(*client).stats().connections_lost.load(), 0u);
}

TEST(Client, ASmallCommandNeverComesBetweenTheHeadOfASetAndItsValue) {
  std::atomic<const void*> writer{nullptr};  // the peer that carries values
  std::atomic<bool> first{true};
  std::promise<void> asked;
  std::promise<void> go;
  const auto proceed = go.get_future().share();
  ScriptedServer server([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (writer != nullptr && writer != &peer) {
      peer.hang_up();  // from now on the lane of small commands stays down
      return true;
    }
    if (command[0] == "SET" && first.exchange(false)) {
      writer = &peer;
      asked.set_value();
      proceed.wait_for(std::chrono::seconds(10));
    }
    return false;
  });
  Config config = config_for(server.port());
  config.connections = 1;
  config.window_bytes = 1;  // one value at a time, with the head of the next sent early
  config.stall_timeout = kSecond;
  const auto client = open(config);
  std::vector<std::string> written;
  for (char c = 'a'; c <= 'f'; ++c) written.emplace_back(500'000, c);
  const std::vector<std::string> keys{"a", "b", "c", "d", "e", "f"};
  const auto values = make_batch(Verb::kSet, keys, &written);
  ASSERT_TRUE(client->submit(values));
  asked.get_future().wait_for(std::chrono::seconds(10));
  const auto touch = make_batch(Verb::kTouch, {"a"});
  ASSERT_TRUE(client->submit(touch));
  EXPECT_FALSE(touch->wait(monotonic_ns() + 50 * kMilli)) << "the server answers nothing yet";
  go.set_value();
  ASSERT_TRUE(values->wait(monotonic_ns() + kPatience));
  ASSERT_TRUE(touch->wait(monotonic_ns() + kPatience));
  for (const Command& command : values->commands()) EXPECT_EQ(command.status, Status::kOk);
  EXPECT_EQ(touch->commands()[0].status, Status::kOk);
  std::vector<std::string> read(written.size(), std::string(500'000, '.'));
  EXPECT_EQ(run(*client, make_batch(Verb::kGet, keys, &read)), "OK OK OK OK OK OK");
  EXPECT_EQ(read, written);
}

TEST(Client, OneBufferMayBeWrittenUnderManyKeys) {
  std::promise<void> answered;
  std::atomic<bool> first{true};
  ScriptedServer server([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "SET" || !first.exchange(false)) return false;
    peer.send("+OK\r\n");  // long before it reads the next, which waits in the outbox
    answered.get_future().wait_for(std::chrono::milliseconds(50));
    return true;
  });
  Config config = config_for(server.port());
  config.connections = 1;
  config.window_bytes = 64 * kMiB;
  config.stall_timeout = kPatience;
  const auto client = open(config);
  std::string value(15'000'000, 'v');
  auto batch = std::make_shared<Batch>(Batch::Options{.verb = Verb::kSet});
  batch->quiet = true;
  batch->add("a", std::as_writable_bytes(std::span(value)));
  batch->add("b", std::as_writable_bytes(std::span(value)));
  EXPECT_EQ(run(*client, batch), "OK OK") << batch->error().text;
}

TEST(Client, ADeadlineIsKept) {
  SlowServer server;
  Config config = config_for(server.port());
  config.stall_timeout = kPatience;
  const auto client = open(config);
  std::vector<std::string> values{std::string(SlowServer::kSize, '.')};
  const Nanos begin = monotonic_ns();
  EXPECT_EQ(run(*client, make_batch(Verb::kGet, {"slow"}, &values, begin + 80 * kMilli)),
            "TIMEOUT");
  EXPECT_GE(monotonic_ns() - begin, 80 * kMilli);
  EXPECT_LT(monotonic_ns() - begin, kPatience / 2);
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"k"}, nullptr, 1)), "TIMEOUT");
}

TEST(Client, ClosingFinishesEveryBatchExactlyOnce) {
  SlowServer server;
  Config config = config_for(server.port());
  config.stall_timeout = kPatience;
  const auto client = open(config);
  std::vector<std::string> values{std::string(SlowServer::kSize, '.')};
  std::map<std::uint64_t, int> finished;
  const auto submit = [&](const std::shared_ptr<Batch>& batch) {
    batch->quiet = false;
    const auto id = client->submit(batch);
    ASSERT_TRUE(id);
    finished[*id] = 0;
  };
  submit(make_batch(Verb::kGet, {"slow"}, &values));
  server.wait_for_part();
  for (int i = 0; i < 100; ++i) {
    submit(make_batch(Verb::kTouch, {"a", "b"}));
    submit(make_batch(Verb::kGet, {"slow", "slow"}));
    submit(make_batch(Verb::kSet, {"c"}));
  }
  client->close();
  client->close();
  for (const auto& batch : client->drain()) {
    EXPECT_TRUE(batch->finished());
    ++finished[batch->id];
  }
  for (const auto& [id, times] : finished) EXPECT_EQ(times, 1) << id;
  EXPECT_EQ(client->running(), 0u);
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"k"})), "closed");
}

TEST(Client, WhatIsSubmittedWhileItClosesIsRefusedOrFinished) {
  ScriptedServer server;
  for (int round = 0; round < 40; ++round) {
    const auto client = open(config_for(server.port()));
    std::vector<std::shared_ptr<Batch>> accepted;
    std::promise<void> under_way;
    std::thread submitter([&] {
      for (auto batch = make_batch(Verb::kTouch, {"k"}); client->submit(batch);
           batch = make_batch(Verb::kTouch, {"k"})) {
        accepted.push_back(batch);
        if (accepted.size() == static_cast<std::size_t>(1 + round)) under_way.set_value();
      }
    });
    under_way.get_future().wait();
    client->close();
    submitter.join();
    for (const auto& batch : accepted) ASSERT_TRUE(batch->wait(monotonic_ns() + kPatience));
  }
}

TEST(Client, ClosesWhileConnectionsLookTheirServerUp) {
  std::uint16_t port = 0;
  {
    const ScriptedServer gone;
    port = gone.port();
  }
  Config config = config_for(port);
  config.endpoint.host = "localhost";
  config.connections = 4;
  config.reconnect_min = config.reconnect_max = 10 * kMicro;
  for (int round = 0; round < 60; ++round) {
    const auto client = open(config);
    EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"k"})), "UNAVAILABLE");
    client->close();
  }
}

// What could not be sent whole would be waited for.
TEST(Client, WhatCanNeverBeSentIsRefusedAtTheCall) {
  ScriptedServer server;
  const auto client = open(config_for(server.port()));
  const auto refused = [&](const std::string& key, std::size_t size, bool framed) {
    auto batch = std::make_shared<Batch>(Batch::Options{.verb = Verb::kExists, .framed = framed});
    batch->quiet = true;
    if (!key.empty() || size > 0) batch->add(key, {static_cast<std::byte*>(nullptr), size});
    const auto id = client->submit(batch);
    if (id) return outcome(*batch);
    EXPECT_EQ(id.error().code, Errc::kInvalidArgument);
    return id.error().context;
  };
  EXPECT_EQ(refused("", 0, false), "the batch is empty; ask for at least one key");
  EXPECT_EQ(refused("", 1, false), "a key has 1 to 512 bytes, this one 0");
  EXPECT_EQ(refused(std::string(100'000, 'k'), 1, false),
            "a key has 1 to 512 bytes, this one 100000");
  EXPECT_EQ(refused(std::string(512, 'k'), 5 * kMiB, true), "MISS");
  EXPECT_EQ(refused("k", std::size_t{257} << 30, true),
            "a value has 275951648768 bytes; store at most 274873712640 under one key");
  EXPECT_EQ(client->running(), 0u);
}

TEST(Client, WordsThatNoGreetingCanHoldAreRefusedWhenItIsOpened) {
  const std::string word(100'000, 'w');
  for (std::string Config::* field : {&Config::sentinel_username, &Config::sentinel_password}) {
    Config config = config_for(1);
    config.*field = word;
    EXPECT_EQ(Client::open(config).error().code, Errc::kInvalidArgument);
  }
  for (std::string Greeting::* field :
       {&Greeting::username, &Greeting::password, &Greeting::client_name}) {
    ScriptedServer server;
    Config config = config_for(server.port());
    config.*field = word;
    const auto refused = Client::open(config);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
    EXPECT_NE(refused.error().context.find("has 100000 bytes; servers take at most 16384"),
              std::string::npos)
        << refused.error().context;
    config.*field = word.substr(0, kCredentialBytesMax);
    if (field == &Greeting::username) config.password = config.client_name = config.username;
    EXPECT_EQ(run(*open(config), make_batch(Verb::kTouch, {"k"})), "MISS") << "all of it is sent";
  }
}

TEST(Client, AValueThatTheServerDoesNotTakeIsRefusedInItsWords) {
  ScriptedServer server([](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "HELLO") return false;
    peer.send("%0\r\n");
    peer.await_bytes();  // the head of the SET, and a part of its value
    peer.send("-ERR Protocol error: invalid bulk length\r\n");
    return peer.wait_for_end() || true;
  });
  const auto client = open(config_for(server.port()));
  std::vector<std::string> values{std::string(64 << 20, 'v')};
  const auto batch = make_batch(Verb::kSet, {"k"}, &values);
  EXPECT_EQ(run(*client, batch), "SERVER_ERROR");
  EXPECT_NE(batch->error().text.find("invalid bulk length"), std::string::npos)
      << batch->error().text;
}

TEST(Client, TooMuchWorkIsRefusedWhole) {
  SlowServer server;
  Config config = config_for(server.port());
  config.queued_commands_max = 3;
  const auto client = open(config);
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"a", "b", "c", "d"})), "capacity");
  EXPECT_EQ(client->running(), 0u);
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"a", "b", "c"})), "MISS MISS MISS");
}

TEST(Client, RefusesWhatCannotWork) {
  Config config = config_for(1);
  config.connections = 0;
  const auto none = Client::open(config);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Errc::kInvalidArgument);
}

TEST(Client, ManyThreadsShareIt) {
  ScriptedServer server;
  Config config = config_for(server.port());
  config.workers = 2;
  const auto client = open(config);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 25; ++round) {
        const std::string key = std::to_string(thread) + ":" + std::to_string(round);
        std::vector<std::string> written{key + std::string(2000, 'v'), key};
        std::vector<std::string> read{std::string(written[0].size(), '.'),
                                      std::string(key.size(), '.')};
        EXPECT_EQ(run(*client, make_batch(Verb::kSet, {key, key + "#"}, &written)), "OK OK");
        EXPECT_EQ(run(*client, make_batch(Verb::kGet, {key, key + "#"}, &read)), "OK OK");
        EXPECT_EQ(read, written);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvferry::redis
