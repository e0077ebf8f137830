#include "redis/handshake.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvferry::redis {
namespace {

constexpr std::string_view kSecret = "hunter2-and-more";

Config config(std::string password = "", int database = 0, int protocol = 3) {
  Config result;
  result.password = std::move(password);
  result.database = database;
  result.protocol = protocol;
  return result;
}

// Everything in the outbox, which is sent: "HELLO 3 SETNAME kvferry".
std::string take_sent(Outbox& outbox) {
  std::string wire;
  while (!outbox.empty()) {
    const auto pieces = outbox.pieces();
    const std::size_t size = pieces.front().iov_len;
    wire.append(static_cast<const char*>(pieces.front().iov_base), size);
    outbox.sent(size);
  }
  std::string words;
  for (std::size_t at = wire.find('$'); at != std::string::npos; at = wire.find('$', at)) {
    std::size_t digits = 0;
    const std::size_t length = std::stoul(wire.substr(at + 1), &digits);
    at += 1 + digits + 2;
    words += (words.empty() ? "" : " ") + wire.substr(at, length);
    at += length + 2;
  }
  return words;
}

struct Talk {
  Handshake::State state = Handshake::State::kRunning;
  std::vector<std::string> sent;
  Error error{Errc::kSystem, {}};
  ServerInfo info;
};

// A server that answers each command of ours with the next of `replies`, `step` bytes at a time.
Talk talk(const Config& settings, const std::vector<std::string>& replies,
          std::size_t step = SIZE_MAX) {
  Talk result;
  Handshake handshake(settings);
  Outbox outbox;
  handshake.begin(outbox);
  for (const std::string& reply : replies) {
    result.sent.push_back(take_sent(outbox));
    for (std::size_t at = 0; at < reply.size(); at += std::min(step, reply.size())) {
      EXPECT_EQ(result.state, Handshake::State::kRunning) << "it ended early";
      result.state = handshake.receive(as_bytes(std::string_view(reply).substr(at, step)), outbox);
    }
  }
  EXPECT_TRUE(outbox.empty()) << "a command without an answer: " << take_sent(outbox);
  result.error = handshake.error();
  result.info = handshake.info();
  return result;
}

using Words = std::vector<std::string>;

const std::string kHello =
    "%7\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n$7\r\nversion\r\n$5\r\n9.1.2\r\n$5\r\nproto\r\n:3\r\n"
    "$2\r\nid\r\n:7\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
    "$7\r\nmodules\r\n*1\r\n%2\r\n$4\r\nname\r\n$4\r\nmode\r\n$3\r\nver\r\n:1\r\n";
const std::string kUnknownHello =
    "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n";

TEST(Handshake, HelloIsOneRoundTrip) {
  for (const std::size_t step : {std::size_t{1}, std::size_t{10}, SIZE_MAX}) {
    const Talk plain = talk(config(), {kHello}, step);
    EXPECT_EQ(plain.state, Handshake::State::kReady);
    EXPECT_EQ(plain.sent, Words{"HELLO 3 SETNAME kvferry"});
    EXPECT_EQ(plain.info.server, "valkey");
    EXPECT_EQ(plain.info.version, "9.1.2");
    EXPECT_EQ(plain.info.mode, "standalone");
    EXPECT_EQ(plain.info.protocol, 3);
  }
}

TEST(Handshake, CredentialsNameAndDatabase) {
  Config settings = config("pw", 5);
  EXPECT_EQ(talk(settings, {kHello, "+OK\r\n"}).sent,
            (Words{"HELLO 3 AUTH default pw SETNAME kvferry", "SELECT 5"}));
  settings.username = "reader";
  settings.client_name = "";
  const Talk unnamed = talk(settings, {kHello, "+OK\r\n"}, 1);
  EXPECT_EQ(unnamed.sent, (Words{"HELLO 3 AUTH reader pw", "SELECT 5"}));
  EXPECT_EQ(unnamed.state, Handshake::State::kReady);
}

TEST(Handshake, AUserWithoutPasswordIsStillThatUser) {
  Config settings = config();
  settings.username = "nopass";
  EXPECT_EQ(talk(settings, {kHello}).sent, Words{"HELLO 3 AUTH nopass  SETNAME kvferry"});
  EXPECT_EQ(
      talk(settings, {kUnknownHello, "+OK\r\n", "+OK\r\n"}).sent,
      (Words{"HELLO 3 AUTH nopass  SETNAME kvferry", "AUTH nopass ", "CLIENT SETNAME kvferry"}));
}

TEST(Handshake, OldServersGetSingleCommands) {
  for (const std::string& refusal :
       {kUnknownHello, std::string("-NOPROTO unsupported protocol version\r\n"),
        std::string("-ERR unknown command 'HELLO'\r\n"),
        std::string("!27\r\nERR unknown command 'HELLO'\r\n")}) {
    for (const std::size_t step : {std::size_t{1}, SIZE_MAX}) {
      const Talk open = talk(config("", 2), {refusal, "+OK\r\n", "+OK\r\n"}, step);
      EXPECT_EQ(open.state, Handshake::State::kReady);
      EXPECT_EQ(open.sent,
                (Words{"HELLO 3 SETNAME kvferry", "CLIENT SETNAME kvferry", "SELECT 2"}));
      EXPECT_EQ(open.info.protocol, 2);
      const Talk closed = talk(config("pw"), {refusal, "+OK\r\n", "+OK\r\n"}, step);
      EXPECT_EQ(closed.state, Handshake::State::kReady);
      EXPECT_EQ(closed.sent, (Words{"HELLO 3 AUTH default pw SETNAME kvferry", "AUTH pw",
                                    "CLIENT SETNAME kvferry"}));
    }
  }
}

TEST(Handshake, AnyOtherRefusalOfHelloIsAnsweredByAnOlderGreeting) {
  for (const std::string_view refusal : {
           "ERR command not supported",
           "ERR unsupported command",
           "ERR Unknown Redis command",
           "unknown command `hello`",
           "ERR syntax error",
           "ERR Protocol version is not supported",
           "ERR HELLO is disabled",
           "NOPERM this user has no permissions to run the 'hello' command",
           "NOAUTH HELLO must be called with the client already authenticated",
           "ERR Client sent AUTH, but no password is set",
           "ERR",
           "UNKNOWN",
           "proxy: no",
       }) {
    const std::string reply = "-" + std::string(refusal) + "\r\n";
    const Talk closed = talk(config("pw"), {reply, "+OK\r\n", "+OK\r\n"});
    EXPECT_EQ(closed.state, Handshake::State::kReady) << refusal;
    EXPECT_EQ(closed.info.protocol, 2);
    if (refusal.starts_with("NOAUTH")) continue;
    EXPECT_EQ(talk(config(), {reply, "+OK\r\n"}).state, Handshake::State::kReady) << refusal;
  }
}

TEST(Handshake, TheDefaultUserIsAlsoNamedByNoName) {
  Config settings = config("pw");
  settings.username = "default";
  const Words sent{"HELLO 3 AUTH default pw SETNAME kvferry", "AUTH default pw", "AUTH pw",
                   "CLIENT SETNAME kvferry"};
  for (const std::string_view refusal : {"ERR wrong number of arguments for 'auth' command",
                                         "ERR syntax error", "ERR AUTH takes a password"}) {
    const std::string reply = "-" + std::string(refusal) + "\r\n";
    const Talk old = talk(settings, {kUnknownHello, reply, "+OK\r\n", "+OK\r\n"});
    EXPECT_EQ(old.state, Handshake::State::kReady) << refusal;
    EXPECT_EQ(old.sent, sent);
    EXPECT_EQ(talk(settings, {kUnknownHello, reply, reply}).state, Handshake::State::kFailed);
    settings.username = "somebody";
    EXPECT_EQ(talk(settings, {kUnknownHello, reply}).state, Handshake::State::kFailed);
    settings.username = "default";
  }
  const Talk wrong = talk(settings, {kUnknownHello, "-ERR invalid password\r\n"});
  EXPECT_EQ(wrong.error.code, Errc::kAuth);
}

TEST(Handshake, ProtocolTwoOnRequest) {
  Config settings = config("pw", 1, 2);
  settings.username = "me";
  EXPECT_EQ(talk(settings, {"+OK\r\n", "+OK\r\n", "+OK\r\n"}).sent,
            (Words{"AUTH me pw", "CLIENT SETNAME kvferry", "SELECT 1"}));
  Config unnamed = config("", 0, 2);
  unnamed.client_name = "";
  const Talk named = talk(unnamed, {"+OK\r\n"});
  EXPECT_EQ(named.sent, Words{"CLIENT SETNAME "});
  EXPECT_EQ(named.info.protocol, 2);
}

TEST(Handshake, ANameIsACourtesy) {
  const Talk proxy = talk(config("", 0, 2), {"-ERR unknown command 'CLIENT'\r\n"});
  EXPECT_EQ(proxy.state, Handshake::State::kReady);
  EXPECT_EQ(talk(config("", 3, 2), {"-NOPERM no\r\n", "+OK\r\n"}).state, Handshake::State::kReady);
  EXPECT_EQ(talk(config("", 0, 2), {"-NOAUTH Authentication required.\r\n"}).error.code,
            Errc::kAuth);
}

TEST(Handshake, RefusalsNameTheirKind) {
  const std::vector<std::pair<std::string, Errc>> of_any_greeting = {
      {"-WRONGPASS invalid username-password pair or user is disabled.\r\n", Errc::kAuth},
      {"-ERR invalid password\r\n", Errc::kAuth},
      {"-ERR max number of clients reached\r\n", Errc::kServer},
      {"-LOADING Redis is loading the dataset in memory\r\n", Errc::kServer},
      {"-DENIED Redis is running in protected mode\r\n", Errc::kServer},
  };
  const std::vector<std::pair<std::string, Errc>> of_auth = {
      {"-NOAUTH Authentication required.\r\n", Errc::kAuth},
      {"-ERR Client sent AUTH, but no password is set\r\n", Errc::kAuth},
      {"-NOPERM this user has no permissions to run the 'auth' command\r\n", Errc::kAuth},
      {"!11\r\nERR refused\r\n", Errc::kServer},
  };
  for (const int protocol : {2, 3}) {
    for (const auto& [reply, code] : protocol == 3 ? of_any_greeting : of_auth) {
      for (const std::size_t step : {std::size_t{1}, SIZE_MAX}) {
        const Talk refused = talk(config("pw", 0, protocol), {reply}, step);
        EXPECT_EQ(refused.state, Handshake::State::kFailed) << reply;
        EXPECT_EQ(refused.error.code, code) << reply;
        EXPECT_NE(reply.find(refused.error.context.substr(0, 10)), std::string::npos) << reply;
      }
    }
  }
  const std::string no_user = "-NOAUTH HELLO must be called with the client already authenticated";
  EXPECT_EQ(talk(config(), {no_user + "\r\n"}).error.code, Errc::kAuth);
  const Talk full = talk(config("", 0, 2), {"-ERR max number of clients reached\r\n"});
  EXPECT_EQ(full.error.code, Errc::kServer) << "the answer to a name may be about everything";
  const Talk range = talk(config("", 99), {kHello, "-ERR DB index is out of range\r\n"});
  EXPECT_EQ(range.error.code, Errc::kServer);
  EXPECT_EQ(range.error.context, "ERR DB index is out of range");
}

TEST(Handshake, SecretsNeverReachTheError) {
  const std::string secret(kSecret);
  const std::string echo = "-ERR unknown command 'AUTH', with args beginning with: '" + secret;
  const std::vector<std::string> refusals = {
      echo + "'\r\n",
      echo.substr(0, echo.size() - 4) + "...\r\n",  // servers cut what they repeat
      "-ERR " + secret + " is not it\r\n",
      "-ERR " + std::string(190, '.') + secret + "\r\n",
      "-" + secret + "\r\n",
  };
  for (const std::string& refusal : refusals) {
    const Talk plain = talk(config(secret, 0, 2), {refusal});
    EXPECT_EQ(plain.state, Handshake::State::kFailed) << refusal;
    EXPECT_EQ(plain.error.context.find("hunter2"), std::string::npos) << plain.error.context;
    EXPECT_FALSE(plain.error.context.empty());
    const Talk after_hello = talk(config(secret), {kUnknownHello, refusal});
    EXPECT_EQ(after_hello.error.context.find("hunter2"), std::string::npos);
  }
}

TEST(Handshake, GarbageIsAProtocolError) {
  for (const std::string& garbage :
       {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string("\x16\x03\x01\x02\r\n"),
        std::string("$70000\r\n"), std::string(9000, '+'), std::string("$3\r\nabcde\r\n")}) {
    const Talk refused = talk(config("pw"), {garbage});
    EXPECT_EQ(refused.state, Handshake::State::kFailed);
    EXPECT_EQ(refused.error.code, Errc::kProtocol);
  }
}

TEST(Handshake, ExtrasAreSkipped) {
  const std::string extras = ">2\r\n$5\r\nhello\r\n-ERR no\r\n|1\r\n$4\r\nmode\r\n-ERR no\r\n";
  for (const std::size_t step : {std::size_t{1}, SIZE_MAX}) {
    const Talk done = talk(config("", 1), {extras + kHello, extras + "+OK\r\n"}, step);
    EXPECT_EQ(done.state, Handshake::State::kReady);
    EXPECT_EQ(done.info.mode, "standalone");
  }
}

TEST(Handshake, AReplicaOfAClusterIsAskedForReads) {
  Config settings = config("pw");
  settings.read_only = true;
  const Talk ready = talk(settings, {kHello, "+OK\r\n"});
  EXPECT_EQ(ready.state, Handshake::State::kReady);
  EXPECT_EQ(ready.sent, (Words{"HELLO 3 AUTH default pw SETNAME kvferry", "READONLY"}));
  settings.database = 2;
  EXPECT_EQ(talk(settings, {kHello, "+OK\r\n", "+OK\r\n"}, 1).sent,
            (Words{"HELLO 3 AUTH default pw SETNAME kvferry", "SELECT 2", "READONLY"}));
  settings.protocol = 2;
  settings.database = 0;
  EXPECT_EQ(talk(settings, {"+OK\r\n", "+OK\r\n", "+OK\r\n"}).sent,
            (Words{"AUTH pw", "CLIENT SETNAME kvferry", "READONLY"}));
  const Talk refused =
      talk(settings, {"+OK\r\n", "+OK\r\n", "-ERR This instance has cluster support disabled\r\n"});
  EXPECT_EQ(refused.state, Handshake::State::kFailed) << "its reads would all be redirected";
  EXPECT_EQ(refused.error.code, Errc::kServer);
}

TEST(Handshake, TheServerNamesItsRoleAndItsZone) {
  const Talk told = talk(config(), {"%3\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n$4\r\nrole\r\n"
                                    "$7\r\nreplica\r\n$17\r\navailability_zone\r\n"
                                    "$10\r\neu-west-1a\r\n"});
  EXPECT_EQ(told.info.role, "replica");
  EXPECT_EQ(told.info.zone, "eu-west-1a");
  const Talk silent = talk(config("", 0, 2), {"+OK\r\n"});
  EXPECT_EQ(silent.info.role + silent.info.zone, "");
}

}  // namespace
}  // namespace kvferry::redis
