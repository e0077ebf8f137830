#include "redis/presence/seat.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace kvferry::redis {
namespace {

TEST(PresenceSeat, OneOfThoseWithANameHasIt) {
  const std::string name = "kvferry-test-" + std::to_string(::getpid());
  PresenceSeat first(name);
  EXPECT_FALSE(first.taken());
  EXPECT_TRUE(first.take());
  EXPECT_TRUE(first.take()) << "it is his already";
  {
    PresenceSeat second(name);
    EXPECT_FALSE(second.take());
    first.let_go();
    EXPECT_FALSE(first.taken());
    EXPECT_TRUE(second.take());
    EXPECT_FALSE(first.take());
  }
  EXPECT_TRUE(first.take()) << "whoever had it is gone";
  PresenceSeat other(name + "x");
  EXPECT_TRUE(other.take());
}

TEST(PresenceSeat, WithoutANameItIsFree) {
  EXPECT_TRUE(PresenceSeat("").taken());
  PresenceSeat lengthy(std::string(300, 'k'));
  EXPECT_TRUE(lengthy.take()) << "a name is cut, not refused";
}

}  // namespace
}  // namespace kvferry::redis
