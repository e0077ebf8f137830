// What a client asks of the system for what it does: counted, not timed.
#include <gtest/gtest.h>

#include <string>
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

TEST(ClientCalls, AValueGoesWithItsHeadInOneCallWhereNoReplyIsAwaited) {
  ScriptedServer server;
  const auto client = open(config_for(server.port()));
  std::vector<std::string> values{std::string(40'000, 'v')};
  ASSERT_EQ(run(*client, make_batch(Verb::kSet, {"k"}, &values)), "OK");
  const std::uint64_t before = only_node(*client).stats().sends.load();
  ASSERT_EQ(run(*client, make_batch(Verb::kSet, {"k"}, &values)), "OK");
  EXPECT_EQ(only_node(*client).stats().sends.load() - before, 1u);
}

}  // namespace
}  // namespace kvferry::redis
