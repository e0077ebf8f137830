// Client with credentials that are provided: new ones on live connections, refusals, failures.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/test_no_threads.hpp"
#include "fuzz/client_driver.hpp"
#include "fuzz/scripted_server.hpp"

namespace kvferry::redis {
namespace {

using Peer = ScriptedServer::Peer;
using Words = ScriptedServer::Command;

Config config_for(std::uint16_t port) {
  Config config = client_config(port);
  config.connections = 1;
  config.connect_timeout = config.stall_timeout = kSecond;
  return config;
}

// Answers whoever asks with what answer() returns, until the source is closed.
class Provider {
 public:
  explicit Provider(std::function<Result<Credentials>()> answer)
      : answer_(std::move(answer)), thread_([this] {
          while (!source->closed()) {
            if (source->await_request(monotonic_ns() + kPatience)) source->provide(answer_());
          }
        }) {}
  ~Provider() {
    source->close();
    thread_.join();
  }

  const std::shared_ptr<CredentialSource> source = std::make_shared<CredentialSource>();

 private:
  const std::function<Result<Credentials>()> answer_;
  std::thread thread_;
};

// What each connection said, in short: "HELLO me/one", "AUTH me/two", "GET".
class Journal {
 public:
  void note(const Peer& peer, const Words& command) {
    std::string line = command[0];
    if (line == "HELLO" && command.size() > 4) line += " " + command[3] + "/" + command[4];
    if (line == "AUTH") line += " " + command.at(1) + "/" + command.at(2);
    const std::lock_guard lock(mutex_);
    lines_[&peer].push_back(line);
  }
  [[nodiscard]] std::vector<std::vector<std::string>> connections() {
    const std::lock_guard lock(mutex_);
    std::vector<std::vector<std::string>> all;
    for (const auto& [peer, lines] : lines_) all.push_back(lines);
    return all;
  }

 private:
  std::mutex mutex_;
  std::map<const Peer*, std::vector<std::string>> lines_;
};

TEST(ClientCredentials, EveryConnectionAsksAndUsesWhatItIsGiven) {
  Journal journal;
  ScriptedServer server([&](Peer& peer, const Words& command) {
    journal.note(peer, command);
    return false;
  });
  Provider provider([] { return Credentials{.username = "me", .password = "one"}; });
  const auto client = open(config_for(server.port()), provider.source);
  std::vector<std::string> values{"v"};
  EXPECT_EQ(run(*client, make_batch(Verb::kSet, {"k"}, &values)), "OK");
  EXPECT_EQ(run(*client, make_batch(Verb::kTouch, {"k"})), "OK");
  for (const auto& lines : journal.connections()) EXPECT_EQ(lines.at(0), "HELLO me/one");
}

// Once credentials are there, a name is looked up: by a thread that could not be started then.
TEST(ClientCredentials, AHostThatWasOutOfThreadsForAWhileCostsTheDialsOfThatWhileOnly) {
  ScriptedServer server;  // on 127.0.0.1 only
  std::promise<void> go;
  const auto proceed = go.get_future().share();
  Provider provider([&] {
    proceed.wait_for(std::chrono::seconds(10));
    return Credentials{.username = "me", .password = "one"};
  });
  Config config = config_for(server.port());
  config.endpoint.host = "localhost";
  config.connect_timeout = kPatience;
  const auto client = open(config, provider.source);
  Server& node = *client->router().nodes()[0].server;
  {
    const NoThreads none;
    go.set_value();
    EXPECT_EQ(run_until(*client, Verb::kTouch, {"k"}, "UNAVAILABLE"), "UNAVAILABLE");
    EXPECT_NE(node.down_error().context.find("no thread"), std::string::npos)
        << node.down_error().context;
    EXPECT_GE(node.stats().dials_failed.load(), 3u);
  }
  EXPECT_EQ(run_until(*client, Verb::kTouch, {"k"}, "MISS"), "MISS");
}

TEST(ClientCredentials, ThoseThatAreTooLongAreRefusedWithAReason) {
  ScriptedServer server;
  std::atomic<bool> long_user{true};
  Provider provider([&] {
    const std::string word(100'000, 'w');
    return long_user ? Credentials{.username = word, .password = "one"}
                     : Credentials{.username = "me", .password = word};
  });
  const auto client = open(config_for(server.port()), provider.source);
  Server& node = *client->router().nodes()[0].server;
  for (const char* what : {"user name", "password"}) {
    EXPECT_EQ(run_until(*client, Verb::kTouch, {"k"}, "UNAVAILABLE"), "UNAVAILABLE");
    const Nanos until = monotonic_ns() + kPatience;
    while (node.down_error().context.find(what) == std::string::npos && monotonic_ns() < until) {
    }
    EXPECT_EQ(node.down_error().context, std::string("the ") + what +
                                             " that was provided has 100000 bytes; "
                                             "servers take at most 16384");
    long_user = false;
  }
}

TEST(ClientCredentials, NewOnesReachConnectionsThatAreUpBeforeTheirNextCommand) {
  Journal journal;
  ScriptedServer server([&](Peer& peer, const Words& command) {
    journal.note(peer, command);
    return false;
  });
  Provider provider([] { return Credentials{.username = "me", .password = "one"}; });
  const auto client = open(config_for(server.port()), provider.source);
  std::vector<std::string> values{"v"};
  ASSERT_EQ(run(*client, make_batch(Verb::kSet, {"k"}, &values)), "OK");
  provider.source->provide(Credentials{.username = "me", .password = "two"});
  ASSERT_EQ(run(*client, make_batch(Verb::kGet, {"k"}, &values)), "OK");
  bool seen = false;
  for (const auto& lines : journal.connections()) {
    const auto get = std::ranges::find(lines, "GET");
    if (get == lines.end()) continue;
    seen = true;
    EXPECT_NE(std::find(lines.begin(), get, "AUTH me/two"), get) << "before the GET";
  }
  EXPECT_TRUE(seen);
  EXPECT_EQ(client->router().nodes()[0].server->stats().connections_lost.load(), 0u);
}

TEST(ClientCredentials, AnAuthNeverComesBetweenTheHeadOfASetAndItsValue) {
  Journal journal;
  std::atomic<bool> first{true};
  std::promise<void> asked;
  std::promise<void> go;
  const auto proceed = go.get_future().share();
  ScriptedServer server([&](Peer& peer, const Words& command) {
    journal.note(peer, command);
    if (command[0] == "SET" && first.exchange(false)) {
      asked.set_value();
      proceed.wait_for(std::chrono::seconds(10));  // the head of the second is on its way
    }
    return false;
  });
  Provider provider([] { return Credentials{.username = "me", .password = "one"}; });
  Config config = config_for(server.port());
  config.window_bytes = 1;  // one value at a time, with the head of the next sent early
  config.stall_timeout = kPatience;
  const auto client = open(config, provider.source);
  const std::vector<std::string> keys{"a", "b", "c", "d", "e", "f"};
  std::vector<std::string> written;
  for (char c = 'a'; c <= 'f'; ++c) written.emplace_back(300'000, c);
  const auto sets = make_batch(Verb::kSet, keys, &written);
  ASSERT_TRUE(client->submit(sets));
  ASSERT_EQ(asked.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  provider.source->provide(Credentials{.username = "me", .password = "two"});
  client->cancel(0);  // unknown: it only makes the workers look around
  go.set_value();
  EXPECT_EQ(outcome(*sets), "OK OK OK OK OK OK") << sets->error().text;
  provider.source->provide(Credentials{.username = "me", .password = "three"});
  std::vector<std::string> read(written.size(), std::string(300'000, '.'));
  EXPECT_EQ(run(*client, make_batch(Verb::kGet, keys, &read)), "OK OK OK OK OK OK");
  EXPECT_EQ(read, written);
  EXPECT_EQ(client->router().nodes()[0].server->stats().connections_lost.load(), 0u);
  for (const auto& lines : journal.connections()) {
    const auto get = std::ranges::find(lines, "GET");
    if (get == lines.end()) continue;
    EXPECT_NE(std::find(lines.begin(), get, "AUTH me/three"), get);
  }
}

TEST(ClientCredentials, ARefusedRenewalMeansANewConnectionAndNewCredentials) {
  std::mutex mutex;
  std::string valid = "one";
  ScriptedServer server([&](Peer& peer, const Words& command) {
    const std::lock_guard lock(mutex);
    if (command[0] == "AUTH" && command.at(2) != valid) {
      return peer.send("-WRONGPASS invalid username-password pair\r\n");
    }
    if (command[0] == "HELLO" && command.at(4) != valid) {
      return peer.send("-WRONGPASS invalid username-password pair\r\n");
    }
    return false;
  });
  Provider provider([&] {
    const std::lock_guard lock(mutex);
    return Credentials{.username = "me", .password = valid};
  });
  const auto client = open(config_for(server.port()), provider.source);
  ASSERT_EQ(run(*client, make_batch(Verb::kGet, {"k"})), "MISS");
  provider.source->provide(Credentials{.username = "me", .password = "wrong"});
  // The connection ends at the refusal; its command goes to one that asked for credentials anew.
  std::string status;
  for (const Nanos until = monotonic_ns() + kPatience; monotonic_ns() < until;) {
    status = run(*client, make_batch(Verb::kGet, {"k"}));
    const auto& stats = client->router().nodes()[0].server->stats();
    if (status == "MISS" && stats.connections_lost.load() > 0) break;
  }
  EXPECT_EQ(status, "MISS");
  EXPECT_GT(client->router().nodes()[0].server->stats().connections_lost.load(), 0u);
}

TEST(ClientCredentials, WhileARenewalIsRefusedEveryAnswerSaysSo) {
  ScriptedServer server([](Peer& peer, const Words& command) {
    const bool wrong = (command[0] == "AUTH" && command.at(2) != "one") ||
                       (command[0] == "HELLO" && command.at(4) != "one");
    return wrong && peer.send("-WRONGPASS invalid username-password pair\r\n");
  });
  std::atomic<bool> renewed{false};
  Provider provider([&]() -> Result<Credentials> {
    return Credentials{.username = "me", .password = renewed ? "wrong" : "one"};
  });
  Config config = config_for(server.port());
  config.connections = 8;  // some are refused when they dial, others while they are up
  const auto client = open(config, provider.source);
  ASSERT_EQ(run(*client, make_batch(Verb::kGet, {"k"})), "MISS");
  renewed = true;
  provider.source->provide(Credentials{.username = "me", .password = "wrong"});
  int refused = 0;
  for (const Nanos until = monotonic_ns() + kPatience; refused < 100 && monotonic_ns() < until;) {
    const auto batch = make_batch(Verb::kGet, {"k"});
    if (run(*client, batch) == "MISS") continue;
    ++refused;
    EXPECT_NE(batch->error().text.find("WRONGPASS"), std::string::npos) << batch->error().text;
  }
  EXPECT_EQ(refused, 100);
}

TEST(ClientCredentials, AProviderThatFailsIsUnavailableAndComesBack) {
  ScriptedServer server;
  std::atomic<bool> fails{true};
  Provider provider([&]() -> Result<Credentials> {
    if (fails) return Error{Errc::kAuth, "the credentials provider raised LookupError"};
    return Credentials{.username = "me", .password = "pw"};
  });
  const auto client = open(config_for(server.port()), provider.source);
  const auto batch = make_batch(Verb::kGet, {"k"});
  EXPECT_EQ(run(*client, batch), "UNAVAILABLE");
  EXPECT_NE(batch->error().text.find("LookupError"), std::string::npos) << batch->error().text;
  EXPECT_EQ(server.accepted(), 0) << "without credentials nothing is dialled";
  fails = false;
  EXPECT_EQ(run_until(*client, Verb::kGet, {"k"}, "MISS"), "MISS");
}

TEST(ClientCredentials, AProviderThatNeverAnswersIsGivenUp) {
  ScriptedServer server;
  const auto source = std::make_shared<CredentialSource>();  // and nobody provides
  Config config = config_for(server.port());
  config.connect_timeout = 60 * kMilli;
  auto client = Client::open(config, net::plain_transport(), source);
  ASSERT_TRUE(client);
  const auto batch = make_batch(Verb::kGet, {"k"});
  EXPECT_EQ(run(**client, batch), "UNAVAILABLE");
  EXPECT_NE(batch->error().text.find("no credentials in time"), std::string::npos)
      << batch->error().text;
  source->provide(Credentials{.username = "me", .password = "pw"});  // to whoever still waits
  (*client)->close();
  EXPECT_TRUE(source->closed());
}

}  // namespace
}  // namespace kvferry::redis
