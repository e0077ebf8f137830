// What happens to a client when an I/O thread cannot go on. Without memory the connection ends and
// its commands go on elsewhere or have a status; after a check that failed the client is closed.
// The host process lives.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "fuzz/client_driver.hpp"
#include "fuzz/scripted_server.hpp"

namespace {

// Allocations of I/O threads: those before the first that fails, and how many fail from there.
std::atomic<long> allocations_left{0};
std::atomic<long> failures_left{0};

bool on_io_thread() noexcept {
  thread_local const bool io = [] {
    char name[16] = {};
    ::pthread_getname_np(::pthread_self(), name, sizeof name);
    return std::strncmp(name, "kvferry-io", 10) == 0;
  }();
  return io;
}

void* allocate(std::size_t size) {
  if (failures_left.load(std::memory_order_relaxed) > 0 && on_io_thread() &&
      allocations_left.fetch_sub(1) <= 1 && failures_left.fetch_sub(1) > 0) {
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace kvferry::redis {
namespace {

// Their heads need memory: for the checksums, and to encode into.
std::shared_ptr<Batch> framed_set(std::vector<std::string>& values) {
  auto batch = std::make_shared<Batch>(
      Batch::Options{.verb = Verb::kSet, .framed = true, .codec = codec::Codec::kSplit12});
  for (std::size_t i = 0; i < values.size(); ++i) {
    batch->add("framed " + std::to_string(i), std::as_writable_bytes(std::span(values[i])));
  }
  batch->quiet = true;
  return batch;
}

// Reads, asks and writes while the allocation of this number fails, and `more` behind it.
// False: so many allocations were not made.
bool survives(const Config& config, std::atomic<int>& cuts, long allocation, long more) {
  const Nanos began = monotonic_ns();
  failures_left.store(0);
  const auto client = open(config);
  std::vector<std::string> written{std::string(300'000, 'a'), "b", std::string(100'000, 'c')};
  const std::vector<std::string> keys{"a", "b", "c"};
  EXPECT_EQ(run(*client, make_batch(Verb::kSet, keys, &written)), "OK OK OK");
  failures_left.store(more + 1);
  allocations_left.store(allocation);
  for (int round = 0; round < 3; ++round) {
    cuts.store(2);  // what is healthy allocates nothing
    std::vector<std::string> read{std::string(300'000, '.'), ".", std::string(100'000, '.')};
    const std::string outcome = run(*client, make_batch(Verb::kGet, keys, &read));
    EXPECT_NE(outcome, "never finished") << allocation;
    if (outcome == "OK OK OK") {
      EXPECT_EQ(read, written) << allocation;
    }
    EXPECT_NE(run(*client, make_batch(Verb::kTouch, {"a", "no"})), "never finished");
    EXPECT_NE(run(*client, make_batch(Verb::kSet, keys, &written)), "never finished");
    EXPECT_NE(run(*client, framed_set(written)), "never finished") << allocation;
  }
  EXPECT_LT(monotonic_ns() - began, 4 * kSecond) << "a connection was left alone, " << allocation;
  const bool met = failures_left.exchange(0) <= more;
  if (more < 2) {
    EXPECT_EQ(run_until(*client, Verb::kTouch, {"a"}, "OK"), "OK") << "its connections are back";
  }
  return met;
}

TEST(IoThread, WithoutMemoryEndsAConnectionAndNotTheProcess) {
  std::atomic<int> cuts{0};
  ScriptedServer server([&](ScriptedServer::Peer& peer, const ScriptedServer::Command& command) {
    if (command[0] != "GET" || cuts.fetch_sub(1) <= 0) return false;
    peer.send("$300000\r\n" + std::string(50'000, 'W'));
    peer.hang_up();
    return true;
  });
  const Config config = client_config(server.port());
  for (const long more : {0L, 20L}) {
    long allocation = 1;
    while (allocation < 100 && survives(config, cuts, allocation, more)) ++allocation;
    EXPECT_GT(allocation, 1) << "no allocation was met";
    EXPECT_LT(allocation, 100);
  }
}

class Unbelieving final : public BatchListener {
 public:
  void corrupt(const Batch&, const Command&) override {}
  void finished(BatchTaker&, const std::shared_ptr<Batch>&) override { check(false, "this holds"); }
};

TEST(IoThread, WithAFailedCheckFailsTheClientClosedAndNotTheProcess) {
  ScriptedServer server;
  const auto client = open(client_config(server.port()));
  ASSERT_EQ(run(*client, make_batch(Verb::kTouch, {"k"})), "MISS");
  const auto batch = make_batch(Verb::kTouch, {"k"});
  batch->listener = std::make_shared<Unbelieving>();
  ASSERT_TRUE(client->submit(batch));
  EXPECT_EQ(run_until(*client, Verb::kTouch, {"k"}, "UNAVAILABLE"), "UNAVAILABLE");
  EXPECT_FALSE(client->router().available());
  std::uint64_t dropped = 0;
  std::string said;
  for (const LogLine& line : client->log().drain(dropped)) said += line.text + "\n";
  EXPECT_NE(said.find("this holds"), std::string::npos) << said;
}

}  // namespace
}  // namespace kvferry::redis
