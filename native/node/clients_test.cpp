#include "node/clients.hpp"

#include <gtest/gtest.h>

namespace kvferry::node {
namespace {

constexpr std::size_t kMax = 1000;  // bytes of all

bool killed(Clients& clients, std::uint64_t id) { return clients.take(id).killed; }

std::uint64_t add(Clients& clients) {
  const auto id = clients.add("test:1", 0, nullptr);
  EXPECT_TRUE(id.has_value());
  clients.spoke(*id);
  return *id;
}

TEST(Clients, WhoHoldsMostForLongestGoesWhenAllTogetherHoldTooMuch) {
  Clients clients(100, SIZE_MAX, kMax);
  const auto quick = add(clients), stalled = add(clients), small = add(clients);
  clients.hold(stalled, {.bytes = 400, .since = 10 * kSecond}, 10 * kSecond);
  clients.hold(small, {.bytes = 20, .since = 10 * kSecond}, 10 * kSecond);
  clients.hold(quick, {.bytes = 580, .since = 20 * kSecond}, 20 * kSecond);
  EXPECT_EQ(clients.held_bytes(), kMax);
  EXPECT_EQ(clients.hungry_closed(), 0u);
  clients.hold(quick, {.bytes = 581, .since = 20 * kSecond}, 20 * kSecond);
  EXPECT_TRUE(killed(clients, stalled));
  EXPECT_FALSE(killed(clients, quick));
  EXPECT_FALSE(killed(clients, small));
  EXPECT_EQ(clients.held_bytes(), 601u);
  clients.hold(stalled, {.bytes = 5000, .since = 0}, 21 * kSecond);  // it is on its way out
  EXPECT_FALSE(killed(clients, quick));
  clients.remove(stalled);
  EXPECT_EQ(clients.held_bytes(), 601u);
  clients.remove(quick);
  clients.remove(small);
  EXPECT_EQ(clients.held_bytes(), 0u);
  EXPECT_EQ(clients.hungry_closed(), 1u);
}

TEST(Clients, AnnouncementsAndPrefixesCountAsWell) {
  Clients clients(100, SIZE_MAX, 10'000);
  const auto deaf = add(clients), other = add(clients);
  for (const auto id : {deaf, other}) {
    clients.update(id, [](ClientEntry& client) { client.prefixes = {"a:"}; });
  }
  clients.hold(other, {.bytes = 16, .since = 50 * kSecond}, 50 * kSecond);
  const std::size_t before = clients.held_bytes();
  while (clients.hungry_closed() == 0) {
    clients.changed({"a:" + std::string(80, 'k')});
    ASSERT_LT(clients.held_bytes(), 10'100u);
    (void)clients.take(other);  // reads
  }
  EXPECT_TRUE(killed(clients, deaf));
  EXPECT_FALSE(killed(clients, other));
  EXPECT_LT(clients.held_bytes(), before);
  EXPECT_EQ(clients.tracking_count(), 2u);
  // Prefixes alone are enough.
  const auto greedy = add(clients);
  clients.update(greedy,
                 [](ClientEntry& client) { client.prefixes.assign(20, std::string(1000, 'p')); });
  EXPECT_TRUE(killed(clients, greedy));
  EXPECT_FALSE(killed(clients, other));
}

TEST(Clients, ForPagesOnlyThoseGoWhoStalled) {
  Clients clients(100, SIZE_MAX, kMax);
  const auto reading = add(clients), stalled = add(clients), longer = add(clients);
  clients.hold(reading, {.page_bytes = 1 << 20, .since = 30 * kSecond - 1}, 30 * kSecond);
  clients.relieve(30 * kSecond);
  EXPECT_EQ(clients.hungry_closed(), 0u);
  clients.hold(stalled, {.page_bytes = 1 << 16, .since = 28 * kSecond}, 30 * kSecond);
  clients.hold(longer, {.page_bytes = 1 << 16, .since = 20 * kSecond}, 30 * kSecond);
  clients.relieve(30 * kSecond);
  EXPECT_TRUE(killed(clients, longer));
  EXPECT_FALSE(killed(clients, stalled));
  clients.relieve(30 * kSecond);
  EXPECT_TRUE(killed(clients, stalled));
  clients.relieve(30 * kSecond);
  EXPECT_FALSE(killed(clients, reading));
}

TEST(Clients, WhenAllPlacesAreTakenTheOldestWhoSaidNothingGoes) {
  Clients clients(3, SIZE_MAX, kMax);
  const auto spoke = add(clients);
  const auto first = *clients.add("test:1", 0, nullptr);
  const auto second = *clients.add("test:1", 0, nullptr);
  const auto third = add(clients);
  EXPECT_TRUE(killed(clients, first));
  EXPECT_FALSE(killed(clients, second));
  const auto fourth = add(clients);
  EXPECT_TRUE(killed(clients, second));
  EXPECT_FALSE(clients.add("test:1", 0, nullptr).has_value());  // the rest has said something
  clients.remove(first);
  EXPECT_FALSE(clients.add("test:1", 0, nullptr).has_value());
  clients.remove(fourth);
  EXPECT_TRUE(clients.add("test:1", 0, nullptr).has_value());
  clients.drop_silent(5);
  EXPECT_FALSE(killed(clients, spoke));
  EXPECT_FALSE(killed(clients, third));
}

}  // namespace
}  // namespace kvferry::node
