// Link to a scripted server. No wait is without a limit, and nothing sleeps.
#include "redis/link.hpp"
#include "base/test_names.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/scripted_server.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kPatience = 10 * kSecond;
constexpr Nanos kShort = 60 * kMilli;

using Words = std::vector<std::string_view>;

net::Endpoint at(std::uint16_t port, std::string host = "127.0.0.1") {
  return {std::move(host), port, {}};
}

Nanos in(Nanos duration) { return monotonic_ns() + duration; }

// What a client lends its links.
struct Surroundings {
  EventFd stop = std::move(*EventFd::open());
  net::Resolver resolver;
  std::shared_ptr<net::Transport> transport = net::plain_transport();
  std::unique_ptr<CredentialSource> credentials;

  [[nodiscard]] LinkContext context() { return {*transport, resolver, credentials.get(), stop}; }
  Result<std::unique_ptr<Link>> open(const net::Endpoint& endpoint, Nanos patience = kPatience,
                                     Greeting greeting = {}) {
    return Link::open(context(), endpoint, std::move(greeting), in(patience));
  }
};

// "+PONG" as "PONG"; an error as "code: words".
std::string show(const Result<resp::Value>& reply) {
  if (reply) return reply->text;
  return std::string(name(reply.error().code)) + ": " + reply.error().context;
}

std::string show(const Error& error) {
  return std::string(name(error.code)) + ": " + error.context;
}

TEST(Link, GreetsAndAnswers) {
  ScriptedServer server;
  server.put("k", "value");
  Surroundings around;
  const auto link = around.open(at(server.port()));
  ASSERT_TRUE(link) << link.error().context;
  EXPECT_EQ((*link)->info().server, "scripted");
  EXPECT_EQ((*link)->info().protocol, 3);
  EXPECT_EQ((*link)->endpoint().port, server.port());
  EXPECT_EQ(show((*link)->call(Words{"GET", "k"}, in(kPatience))), "value");
  EXPECT_EQ(show((*link)->call(Words{"PING"}, in(kPatience))), "PONG");
}

TEST(Link, CommandsAreArraysOfBulks) {
  EXPECT_EQ(encode_words(Words{"GET", ""}), "*2\r\n$3\r\nGET\r\n$0\r\n\r\n");
  EXPECT_EQ(encode_words(Words{std::string_view("a\0\r\n", 4)}),
            std::string("*1\r\n$4\r\na\0\r\n\r\n", 14));
}

TEST(Link, AnErrorReplyIsTheServersWordAndEndsNothing) {
  ScriptedServer server([](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "CLUSTER") return false;
    peer.send("-ERR This instance has cluster support disabled\r\n");
    return true;
  });
  Surroundings around;
  const auto link = around.open(at(server.port()));
  ASSERT_TRUE(link);
  EXPECT_EQ(show((*link)->call(Words{"CLUSTER", "SLOTS"}, in(kPatience))),
            "server: ERR This instance has cluster support disabled");
  EXPECT_EQ(show((*link)->call(Words{"PING"}, in(kPatience))), "PONG");
}

TEST(Link, PushesComeBetweenReplies) {
  const std::string push = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
  ScriptedServer server([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "PING") return false;
    peer.send(push + push + "+PONG\r\n" + push);
    return true;
  });
  Surroundings around;
  const auto link = around.open(at(server.port()));
  ASSERT_TRUE(link);
  EXPECT_EQ(show((*link)->call(Words{"PING"}, in(kPatience))), "PONG");
  const auto left = (*link)->receive(in(kPatience));
  ASSERT_TRUE(left && *left);
  EXPECT_TRUE((*left)->is_push()) << "the one behind the reply";
  EXPECT_EQ((*left)->items.at(0).text, "invalidate");
  const auto none = (*link)->receive(in(kShort));
  ASSERT_TRUE(none) << none.error().context;
  EXPECT_FALSE(*none) << "nothing comes, which is no failure";
  EXPECT_EQ(show((*link)->call(Words{"PING"}, in(kPatience))), "PONG");
}

TEST(Link, Pipelines) {
  ScriptedServer server;
  Surroundings around;
  const auto link = around.open(at(server.port()));
  ASSERT_TRUE(link);
  std::string encoded;
  const std::string large(300'000, 'x');
  for (int i = 0; i < 100; ++i) {
    encoded += encode_words(Words{"SET", "k", i == 50 ? std::string_view(large) : "v"});
  }
  encoded += encode_words(Words{"GET", "k"});
  ASSERT_TRUE((*link)->send(encoded, in(kPatience)));
  for (int i = 0; i <= 100; ++i) {
    const auto reply = (*link)->receive(in(kPatience));
    ASSERT_TRUE(reply && *reply) << i;
    EXPECT_EQ((*reply)->text, i < 100 ? "OK" : "v");
  }
}

TEST(Link, EveryStepKeepsItsDeadline) {
  for (const std::string deaf_to : {"HELLO", "PING"}) {
    ScriptedServer server([&](ScriptedServer::Peer&, const ScriptedServer::Command& command) {
      return command[0] == deaf_to;
    });
    Surroundings around;
    const Nanos begin = monotonic_ns();
    const auto link = around.open(at(server.port()), deaf_to == "HELLO" ? kShort : kPatience);
    if (deaf_to == "HELLO") {
      ASSERT_FALSE(link);
      EXPECT_EQ(link.error().code, Errc::kTimeout) << link.error().context;
      EXPECT_NE(link.error().context.find("127.0.0.1:"), std::string::npos);
    } else {
      ASSERT_TRUE(link);
      const auto reply = (*link)->call(Words{"PING"}, in(kShort));
      ASSERT_FALSE(reply);
      EXPECT_EQ(reply.error().code, Errc::kTimeout) << reply.error().context;
    }
    EXPECT_GE(monotonic_ns() - begin, kShort);
    EXPECT_LT(monotonic_ns() - begin, 5 * kSecond);
  }
}

TEST(Link, AServerThatNeverStopsTalkingIsLeftAtTheDeadline) {
  ScriptedServer server([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "PING") return false;
    std::string pushes;
    for (int i = 0; i < 1000; ++i) pushes += ">1\r\n+x\r\n";
    for (const Nanos until = in(kPatience); monotonic_ns() < until && peer.send(pushes);) {
    }
    return true;
  });
  Surroundings around;
  auto link = around.open(at(server.port()));
  ASSERT_TRUE(link);
  const Nanos begin = monotonic_ns();
  const auto reply = (*link)->call(Words{"PING"}, in(kShort));
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Errc::kTimeout);
  EXPECT_LT(monotonic_ns() - begin, 5 * kSecond);
  link->reset();
}

TEST(Link, WhatAPeerDoesNotTakeIsNotWaitedForLongerThanTheDeadline) {
  std::promise<void> proceed;
  const auto go = proceed.get_future().share();
  ScriptedServer server([&](ScriptedServer::Peer&, const ScriptedServer::Command& command) {
    if (command[0] == "PING") go.wait_for(std::chrono::seconds(10));  // and reads nothing
    return false;
  });
  Surroundings around;
  const auto link = around.open(at(server.port()));
  ASSERT_TRUE(link);
  const std::string much(64 << 20, 'x');  // more than the sockets hold
  ASSERT_TRUE((*link)->send(encode_words(Words{"PING"}), in(kPatience)));
  const Outcome sent = (*link)->send(encode_words(Words{"SET", "k", much}), in(kShort));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, Errc::kTimeout);
  proceed.set_value();
}

TEST(Link, TheStopSignalEndsEveryWait) {
  for (const std::string deaf_to : {"HELLO", "PING"}) {
    Surroundings around;
    ScriptedServer server([&](ScriptedServer::Peer&, const ScriptedServer::Command& command) {
      if (command[0] != deaf_to) return false;
      around.stop.signal();  // while the link waits
      return true;
    });
    const Nanos begin = monotonic_ns();
    const auto link = around.open(at(server.port()));
    if (deaf_to == "HELLO") {
      ASSERT_FALSE(link);
      EXPECT_EQ(link.error().code, Errc::kClosed) << link.error().context;
    } else {
      ASSERT_TRUE(link);
      EXPECT_EQ(show((*link)->call(Words{"PING"}, in(kPatience))), "closed: the client is closing");
      const auto pushed = (*link)->receive(in(kPatience));
      ASSERT_FALSE(pushed) << "once stopped, always stopped";
      EXPECT_EQ(pushed.error().code, Errc::kClosed);
    }
    EXPECT_LT(monotonic_ns() - begin, kPatience / 2);
  }
}

TEST(Link, AStreamThatEndsOrMakesNoSenseIsAnError) {
  ScriptedServer server([](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "PING") return false;
    if (command.size() > 1) {
      peer.send("HTTP/1.1 400 Bad Request\r\n");
    } else {
      peer.hang_up();
    }
    return true;
  });
  Surroundings around;
  const auto cut = around.open(at(server.port()));
  ASSERT_TRUE(cut);
  const auto end = (*cut)->call(Words{"PING"}, in(kPatience));
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code, Errc::kDisconnect) << end.error().context;
  const auto garbled = around.open(at(server.port()));
  ASSERT_TRUE(garbled);
  const auto garbage = (*garbled)->call(Words{"PING", "x"}, in(kPatience));
  ASSERT_FALSE(garbage);
  EXPECT_EQ(garbage.error().code, Errc::kProtocol) << garbage.error().context;
}

TEST(Link, APortThatRefusesIsNamed) {
  std::uint16_t port = 0;
  {
    const ScriptedServer gone;
    port = gone.port();
  }
  Surroundings around;
  const auto link = around.open(at(port));
  ASSERT_FALSE(link);
  EXPECT_NE(link.error().context.find("127.0.0.1:" + std::to_string(port)), std::string::npos)
      << link.error().context;
  EXPECT_NE(link.error().context.find("refused"), std::string::npos) << link.error().context;
}

// --- Names ---

TEST(Link, ANameIsLookedUpAndItsAddressesAreTried) {
  ScriptedServer server;  // on 127.0.0.1 only; where the name has ::1 too, that one refuses
  Surroundings around;
  const auto link = around.open(at(server.port(), "localhost"));
  ASSERT_TRUE(link) << link.error().context;
  EXPECT_EQ(show((*link)->call(Words{"PING"}, in(kPatience))), "PONG");
  const auto nowhere = around.open(at(server.port(), "a name with spaces"));
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, Errc::kResolve) << nowhere.error().context;
}

TEST(Link, ALookUpThatNeverReturnsIsLeftAtTheDeadlineOrWhenStopped) {
  std::promise<void> proceed;
  const auto go = proceed.get_future().share();
  Surroundings around;
  std::promise<void> blocked;
  around.resolver.request(at(1), [&](auto) {
    blocked.set_value();
    go.wait_for(std::chrono::seconds(10));  // as a system resolver does
  });
  blocked.get_future().wait();
  const auto late = around.open(at(1, "localhost"), kShort);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Errc::kTimeout) << late.error().context;
  EXPECT_NE(late.error().context.find("localhost"), std::string::npos);
  around.stop.signal();
  const Nanos begin = monotonic_ns();
  const auto stopped = around.open(at(1, "localhost"));
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, Errc::kClosed) << stopped.error().context;
  EXPECT_LT(monotonic_ns() - begin, kPatience / 2);
  proceed.set_value();  // the answers come now, and nobody is there
  std::promise<void> after;
  around.resolver.request(at(1), [&](auto) { after.set_value(); });
  EXPECT_EQ(after.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

// --- Credentials ---

TEST(Link, RefusedCredentialsAreNotRepeatedInTheError) {
  std::atomic<int> greetings{0};
  ScriptedServer server([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    greetings += command[0] == "HELLO" ? 1 : 0;
    peer.send("-WRONGPASS invalid password " + command[4] + "\r\n");
    return true;
  });
  Surroundings around;
  Greeting greeting;
  greeting.password = "hunter2";
  const auto link = around.open(at(server.port(), "localhost"), kPatience, greeting);
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().code, Errc::kAuth);
  EXPECT_NE(link.error().context.find("WRONGPASS"), std::string::npos) << link.error().context;
  EXPECT_EQ(link.error().context.find("hunter2"), std::string::npos) << link.error().context;
}

TEST(Link, AsksTheSourceForCredentials) {
  std::mutex mutex;
  ScriptedServer::Command hello;
  ScriptedServer server([&](ScriptedServer::Peer&, const ScriptedServer::Command& command) {
    const std::lock_guard lock(mutex);
    if (command[0] == "HELLO") hello = command;
    return false;
  });
  Surroundings around;
  around.credentials = std::make_unique<CredentialSource>();
  std::thread provider([&] {
    if (around.credentials->await_request(in(kPatience))) {
      around.credentials->provide(Credentials{.username = "me", .password = "token"});
    }
    if (around.credentials->await_request(in(kPatience))) {
      around.credentials->provide(Error{Errc::kAuth, "the provider failed"});
    }
  });
  const auto link = around.open(at(server.port()));
  EXPECT_TRUE(link) << link.error().context;
  {
    const std::lock_guard lock(mutex);
    ASSERT_GE(hello.size(), 5u);
    EXPECT_EQ(hello[3] + "/" + hello[4], "me/token");
  }
  const auto refused = around.open(at(server.port()));
  ASSERT_FALSE(refused);
  EXPECT_EQ(show(refused.error()), "auth: the provider failed");
  provider.join();
}

TEST(Link, CredentialsThatNobodyProvidesAreNotWaitedForLongerThanTheDeadline) {
  ScriptedServer server;
  Surroundings around;
  around.credentials = std::make_unique<CredentialSource>();
  const auto late = around.open(at(server.port()), kShort);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Errc::kTimeout);
  EXPECT_NE(late.error().context.find("credentials"), std::string::npos);
  around.credentials->provide(Credentials{.username = "me", .password = "late"});
  around.stop.signal();
  const Nanos begin = monotonic_ns();
  const auto stopped = around.open(at(server.port()));
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, Errc::kClosed) << stopped.error().context;
  EXPECT_LT(monotonic_ns() - begin, kPatience / 2);
  EXPECT_EQ(server.accepted(), 0);
}

}  // namespace
}  // namespace kvferry::redis
