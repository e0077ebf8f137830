#include "net/address.hpp"

#include <gtest/gtest.h>
#include <sys/un.h>

#include <string>

namespace kvferry::net {
namespace {

Endpoint tcp(const std::string& host, std::uint16_t port) { return {host, port, {}}; }
Endpoint unix_at(const std::string& path) { return {{}, 0, path}; }

TEST(Endpoint, TextIsForPeople) {
  EXPECT_EQ(tcp("cache-1", 6379).text(), "cache-1:6379");
  EXPECT_EQ(tcp("::1", 7).text(), "[::1]:7");
  EXPECT_EQ((Endpoint{"ignored", 1, "/run/kv.sock"}.text()), "unix:/run/kv.sock");
}

TEST(Address, LiteralsNeedNoLookUp) {
  for (const char* host : {"127.0.0.1", "::1", "::ffff:10.0.0.1", "2001:db8::7"}) {
    EXPECT_TRUE(resolves_without_lookup(tcp(host, 1))) << host;
  }
  EXPECT_TRUE(resolves_without_lookup(unix_at("/tmp/x")));
  for (const char* host : {"localhost", "cache-1", "", "1.2.3", "::g", "[::1]"}) {
    EXPECT_FALSE(resolves_without_lookup(tcp(host, 1))) << host;
  }
}

TEST(Address, LiteralsResolveToThemselves) {
  auto v4 = resolve(tcp("127.0.0.1", 6379));
  ASSERT_TRUE(v4);
  ASSERT_EQ(v4->size(), 1u);
  EXPECT_EQ(v4->front().family(), AF_INET);
  EXPECT_EQ(v4->front().text(), "127.0.0.1:6379");
  auto v6 = resolve(tcp("2001:db8::7", 65535));
  ASSERT_TRUE(v6);
  ASSERT_EQ(v6->size(), 1u);
  EXPECT_EQ(v6->front().family(), AF_INET6);
  EXPECT_EQ(v6->front().text(), "[2001:db8::7]:65535");
  EXPECT_EQ(resolve(tcp("::ffff:10.0.0.1", 7))->front().text(), "10.0.0.1:7");
}

TEST(Address, NamesResolveOrSayWhyNot) {
  auto local = resolve(tcp("localhost", 6379));
  ASSERT_TRUE(local);
  EXPECT_FALSE(local->empty());
  for (const Address& address : *local) EXPECT_TRUE(address.text().ends_with(":6379"));
  const auto none = resolve(tcp("a name with spaces", 1));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Errc::kResolve);
  EXPECT_NE(none.error().context.find("a name with spaces"), std::string::npos);
}

TEST(Address, UnixPathsHaveALimit) {
  sockaddr_un name{};
  const std::string longest(sizeof name.sun_path - 1, 'p');
  auto fits = resolve(unix_at(longest));
  ASSERT_TRUE(fits);
  ASSERT_EQ(fits->size(), 1u);
  EXPECT_EQ(fits->front().family(), AF_UNIX);
  EXPECT_EQ(fits->front().text(), "unix");
  const auto too_long = resolve(unix_at(longest + "p"));
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().code, Errc::kInvalidArgument);
}

TEST(Address, OfThisHostAreAllLoopbackAddresses) {
  for (const char* host : {"127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback(resolve({host, 1, {}})->front())) << host;
    EXPECT_TRUE(is_loopback({host, 1, {}})) << host;
  }
  for (const char* host : {"128.0.0.1", "10.0.0.1", "::2", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(is_loopback(resolve({host, 1, {}})->front())) << host;
    EXPECT_FALSE(is_loopback({host, 1, {}})) << host;
  }
  EXPECT_FALSE(is_loopback(resolve({{}, 0, "/run/r.sock"})->front()));
  EXPECT_FALSE(is_loopback({{}, 0, "/run/r.sock"}));
  EXPECT_TRUE(is_loopback({"LocalHost", 1, {}}));
  EXPECT_FALSE(is_loopback({"localhost.example", 1, {}}));
}

}  // namespace
}  // namespace kvferry::net
