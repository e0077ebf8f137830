#include "redis/server_error.hpp"

#include <gtest/gtest.h>

namespace kvferry::redis {
namespace {

TEST(ServerError, KindsFollowTheFirstWord) {
  using enum ServerErrorKind;
  const std::pair<std::string_view, ServerErrorKind> cases[] = {
      {"", kCommand},
      {"ERR syntax error", kCommand},
      {"WRONGTYPE Operation against a key holding the wrong kind of value", kCommand},
      {"OOM command not allowed when used memory > 'maxmemory'.", kCommand},
      {"LOADING", kBusy},
      {"LOADING Redis is loading the dataset in memory", kBusy},
      {"LOADINGS", kCommand},
      {"BUSY Redis is busy running a script", kBusy},
      {"MASTERDOWN Link with MASTER is down", kBusy},
      {"CLUSTERDOWN The cluster is down", kBusy},
      {"MOVED 3999 127.0.0.1:6381", kRedirect},
      {"ASK 3999 127.0.0.1:6381", kRedirect},
      {"TRYAGAIN Multiple keys request during rehashing of slot", kRedirect},
      {"READONLY You can't write against a read only replica.", kReconnect},
      {"NOAUTH Authentication required.", kReconnect},
      {"REDIRECT 127.0.0.1:6380", kReconnect},
      {"WRONGPASS invalid username-password pair or user is disabled.", kCredentials},
      {"NOPERM User x has no permissions", kCredentials},
      {"ERR invalid password", kCredentials},
      {"ERR AUTH <password> called without any password configured", kCredentials},
      {"ERR Client sent AUTH, but no password is set", kCredentials},
      {"ERR unknown command 'HELLO'", kUnknown},
      {"ERR wrong number of arguments for 'hello' command", kUnknown},
      {"NOPROTO unsupported protocol version", kUnknown},
  };
  for (const auto& [text, kind] : cases) EXPECT_EQ(classify(text), kind) << text;
}

TEST(ServerError, OnlyARefusalOfWhoWeAreIsAboutCredentials) {
  for (const std::string_view text :
       {"NOAUTH Authentication required.", "WRONGPASS invalid username-password pair",
        "NOPERM User x has no permissions", "ERR invalid password", "ERR Client sent AUTH, but"}) {
    EXPECT_EQ(error_code(text), Errc::kAuth) << text;
  }
  for (const std::string_view text :
       {"READONLY You can't write", "LOADING NOAUTH is not what this is about", "ERR syntax error",
        "REDIRECT 127.0.0.1:1", ""}) {
    EXPECT_EQ(error_code(text), Errc::kServer) << text;
  }
}

TEST(ServerError, WhatMayGoIntoALogIsShortAscii) {
  EXPECT_EQ(printable("ERR plain text"), "ERR plain text");
  EXPECT_EQ(printable(std::string_view("a\0b\r\n\x1b[31m\x7f", 11)), "a?b???[31m?");
  EXPECT_EQ(printable(std::string(1000, 'x')), std::string(kErrorTextMax, 'x'));
  // Bytes that are no ASCII may be cut UTF-8 or none at all, which Python refuses to decode.
  EXPECT_EQ(printable("\xff\xc3"), "??");
}

}  // namespace
}  // namespace kvferry::redis
