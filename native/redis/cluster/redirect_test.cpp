#include "redis/cluster/redirect.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvferry::redis {
namespace {

// "MOVED 3999 host:port", or "none".
std::string show(std::string_view text, std::string_view asked = "asked") {
  const std::optional<Redirect> redirect = parse_redirect(text, asked);
  if (!redirect) return "none";
  return (redirect->kind == RedirectKind::kAsk ? "ASK " : "MOVED ") +
         std::to_string(redirect->slot) + " " + redirect->endpoint.text();
}

TEST(Redirect, MovedAndAsk) {
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {"MOVED 3999 127.0.0.1:6381", "MOVED 3999 127.0.0.1:6381"},
      {"ASK 0 10.0.0.7:1", "ASK 0 10.0.0.7:1"},
      {"MOVED 16383 node-1.cache.example:65535", "MOVED 16383 node-1.cache.example:65535"},
      {"MOVED 1 ::1:6379", "MOVED 1 [::1]:6379"},
      {"ASK 1 2001:db8::a:b:6379", "ASK 1 [2001:db8::a:b]:6379"},
      {"MOVED 1 [2001:db8::1]:6379", "MOVED 1 [2001:db8::1]:6379"},
      {"MOVED 1 fe80::1%eth0:6379", "MOVED 1 [fe80::1%eth0]:6379"},
      {"MOVED 1 :6380", "MOVED 1 asked:6380"},  // cluster-preferred-endpoint-type unknown-endpoint
      {"ASK 1 :6380", "ASK 1 asked:6380"},
      {"MOVED 1 ?:6380", "MOVED 1 :6380"},  // a node without the host name that it should have
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(show(text), expected);
}

TEST(Redirect, MalformedIsNone) {
  for (const std::string_view text : {"",
                                      " ",
                                      "MOVED",
                                      "ASK ",
                                      "MOVED 1",
                                      "MOVED 1 ",
                                      "MOVED 1 host",
                                      "MOVED 1 host:",
                                      "MOVED  1 host:1",
                                      "MOVED x host:1",
                                      "MOVED -1 host:1",
                                      "MOVED +1 host:1",
                                      "MOVED 16384 host:1",
                                      "MOVED 65537 host:1",
                                      "MOVED 99999999999999999999 host:1",
                                      "MOVED 1 host:0",
                                      "MOVED 1 host:65536",
                                      "MOVED 1 host:-1",
                                      "MOVED 1 host: 1",
                                      "MOVED 1 host:1 ",
                                      "MOVED 1 host:1 more",
                                      "MOVED 1 ho st:1",
                                      "MOVED 1 /path:1",
                                      "MOVED 1 ho\tst:1",
                                      "MOVED 1 h\xc3\xb6st:1",
                                      "MOVED 1 ??:1",
                                      "MOVED 1 []:1",
                                      "moved 1 host:1",
                                      "MOVEDX 1 host:1",
                                      "ERR MOVED 1 host:1",
                                      "TRYAGAIN 1 host:1"}) {
    EXPECT_EQ(show(text), "none") << text;
  }
  EXPECT_EQ(show("MOVED 1 " + std::string(255, 'h') + ":1"),
            "MOVED 1 " + std::string(255, 'h') + ":1");
  EXPECT_EQ(show("MOVED 1 " + std::string(256, 'h') + ":1"), "none");
  EXPECT_EQ(show(std::string_view("MOVED 1 ho\0st:1", 15)), "none");
  EXPECT_EQ(show("MOVED 1 :6380", ""), "none") << "asked over a Unix socket: no host to go to";
}

}  // namespace
}  // namespace kvferry::redis
