// Dial without a connection, on a clock that is a number.
#include "redis/dial.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>

namespace kvferry::redis {
namespace {

using Late = Dial::Late;

constexpr Nanos kNow = 1000 * kSecond;

net::Address address(std::uint16_t port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = port;
  net::Address made;
  std::memcpy(&made.storage, &name, sizeof name);
  made.length = sizeof name;
  return made;
}

Config config() {
  Config made;
  made.connect_timeout = 2 * kSecond;
  made.reconnect_min = 8 * kMilli;
  made.reconnect_max = 64 * kMilli;
  return made;
}

struct Begun : Dial {
  Begun() : Dial(config(), 1) { begin(kNow); }
};

TEST(Dial, EachAddressHasItsShareOfTheTime) {
  Begun dial;
  EXPECT_EQ(dial.due(), kNow + 2 * kSecond) << "while the name is looked up";
  dial.resolved({address(1), address(2), address(3)}, {});
  EXPECT_EQ(dial.next(kNow), address(1));
  EXPECT_EQ(dial.due(), kNow + Dial::kNextAddressAfter) << "a third would be more";
  EXPECT_EQ(dial.late(dial.due() - 1), Late::kNo);
  EXPECT_EQ(dial.late(dial.due()), Late::kAddress);
  const Nanos later = kNow + 1600 * kMilli;
  EXPECT_EQ(dial.next(later), address(2));
  EXPECT_EQ(dial.due(), later + 200 * kMilli) << "half of what is left";
  EXPECT_EQ(dial.next(later), address(3));
  EXPECT_FALSE(dial.has_next());
  EXPECT_EQ(dial.due(), kNow + 2 * kSecond) << "the last one has the rest";
  EXPECT_EQ(dial.late(later + 399 * kMilli), Late::kNo);
  EXPECT_EQ(dial.late(kNow + 2 * kSecond), Late::kAttempt);
}

TEST(Dial, WhoAnswersMayTakeLonger) {
  Begun dial;
  dial.resolved({address(1), address(2)}, {});
  EXPECT_EQ(dial.next(kNow), address(1));
  dial.answered(kNow + 100 * kMilli);
  EXPECT_EQ(dial.due(), kNow + 1050 * kMilli) << "half of what is left";
  dial.greets(kNow + 200 * kMilli);
  EXPECT_EQ(dial.due(), kNow + 1100 * kMilli);
  EXPECT_EQ(dial.greeting_took(kNow + 203 * kMilli), 3 * kMilli);
}

TEST(Dial, AShortcutIsTriedFirstAndTheAddressesAreStillThere) {
  Begun dial;
  dial.resolved({address(1)}, {.address = address(9), .version = 4});
  EXPECT_EQ(dial.shortcut(), 0u) << "nothing was tried yet";
  EXPECT_EQ(dial.next(kNow), address(9));
  EXPECT_EQ(dial.shortcut(), 4u);
  EXPECT_TRUE(dial.may_go_on(kNow + 1));
  EXPECT_FALSE(dial.may_go_on(kNow + 2 * kSecond)) << "there is no time left";
  EXPECT_TRUE(dial.leave_shortcut());
  EXPECT_FALSE(dial.leave_shortcut()) << "it is lost once";
  EXPECT_EQ(dial.next(kNow), address(1));
  EXPECT_EQ(dial.shortcut(), 0u);
  EXPECT_FALSE(dial.may_go_on(kNow + 1));
}

TEST(Dial, PausesBecomeLongerUntilOneSucceeds) {
  Begun dial;
  Nanos ceiling = 8 * kMilli;
  for (int attempt = 0; attempt < 5; ++attempt) {
    dial.pause(kNow);
    EXPECT_GT(dial.begins_at(), kNow);
    EXPECT_LE(dial.begins_at(), kNow + ceiling);
    ceiling = std::min(2 * ceiling, 64 * kMilli);
  }
  dial.succeeded();
  dial.pause(kNow);
  EXPECT_LE(dial.begins_at(), kNow + 8 * kMilli);
}

TEST(Dial, AttemptsAreNumberedAndForgetTheOneBefore) {
  Begun dial;
  const std::uint64_t first = dial.number();
  dial.resolved({address(1)}, {.address = address(9), .version = 4});
  EXPECT_EQ(dial.next(kNow), address(9));
  dial.begin(kNow + kSecond);
  EXPECT_NE(dial.number(), first);
  EXPECT_FALSE(dial.has_next());
  EXPECT_EQ(dial.shortcut(), 0u);
  EXPECT_EQ(dial.due(), kNow + 3 * kSecond);
}

}  // namespace
}  // namespace kvferry::redis
