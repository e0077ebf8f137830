// TopologyWatch with a source that a test answers. Times are compared with lower bounds only.
#include "redis/cluster/topology_watch.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/router_driver.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kPatience = 10 * kSecond;

// Looks that the watch has made; each is answered by `answer`, on the watch's thread.
class ScriptedSource final : public TopologySource {
 public:
  struct Look {
    Nanos at;
    std::string known;
    bool troubled;
  };
  using Answer = std::function<Result<SlotMap>(std::size_t number)>;

  explicit ScriptedSource(Answer answer) : answer_(std::move(answer)) {}

  Result<SlotMap> ask(const std::vector<net::Endpoint>& known, bool troubled) override {
    std::size_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      Look look{.at = monotonic_ns(), .known = {}, .troubled = troubled};
      for (const net::Endpoint& endpoint : known) look.known += endpoint.text() + " ";
      looks_.push_back(std::move(look));
      number = looks_.size();
    }
    looked_.notify_all();
    return answer_(number);
  }

  // The looks so far, once there are `count` of them; all the same if there never are.
  std::vector<Look> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    looked_.wait_for(lock, std::chrono::nanoseconds(kPatience),
                     [&] { return looks_.size() >= count; });
    EXPECT_GE(looks_.size(), count);
    return looks_;
  }
  [[nodiscard]] std::size_t count() {
    const std::lock_guard lock(mutex_);
    return looks_.size();
  }

 private:
  const Answer answer_;
  std::mutex mutex_;
  std::condition_variable looked_;
  std::vector<Look> looks_;
};

// A watch over a router; it stops when the test ends.
struct Watched {
  explicit Watched(ScriptedSource::Answer answer, Config config = RouterDriver::cluster())
      : driver(std::move(config)) {
    auto owned = std::make_unique<ScriptedSource>(std::move(answer));
    source = owned.get();
    watch = std::make_unique<TopologyWatch>(driver.config(), driver.router(), driver.log(),
                                            std::move(owned), std::move(*EventFd::open()));
  }
  ~Watched() { watch->stop(); }

  // Whether `holds` within the time that tests have.
  static bool soon(const std::function<bool()>& holds) {
    for (const Nanos until = monotonic_ns() + kPatience; !holds();) {
      if (monotonic_ns() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }

  RouterDriver driver;
  ScriptedSource* source = nullptr;
  std::unique_ptr<TopologyWatch> watch;
};

Result<SlotMap> one_node(std::size_t) { return scripted_map({"0-16383 one:1"}); }

TEST(TopologyWatch, TheFirstLookIsAtOnceAndOpensTheLobby) {
  Watched watched(one_node);
  watched.driver.submit(Verb::kGet, {"a"});
  watched.watch->start();
  ASSERT_TRUE(Watched::soon([&] { return watched.driver.nodes() == "one:1"; }));
  ASSERT_TRUE(Watched::soon([&] { return watched.driver.take() == "one:1=a"; }));
  EXPECT_EQ(watched.source->count(), 1u) << "and then it waits for the next refresh";
}

TEST(TopologyWatch, LooksAgainNowAndThen) {
  Config config = RouterDriver::cluster();
  config.topology_refresh = 20 * kMilli;
  Watched watched(one_node, config);
  watched.watch->start();
  const auto looks = watched.source->wait_for(4);
  for (std::size_t i = 1; i < looks.size(); ++i) {
    EXPECT_GE(looks[i].at - looks[i - 1].at, config.topology_refresh * 8 / 10);
  }
}

TEST(TopologyWatch, ASuspicionMakesItLookSoon) {
  Watched watched(one_node);
  watched.watch->start();
  watched.source->wait_for(1);
  watched.watch->suspect();
  watched.source->wait_for(2);
  watched.watch->suspect();
  watched.source->wait_for(3);
}

TEST(TopologyWatch, ASuspicionDuringALookIsNotForgotten) {
  TopologyWatch* watch = nullptr;
  Watched watched([&](std::size_t number) {
    if (number == 1) watch->suspect();
    return one_node(number);
  });
  watch = watched.watch.get();
  watched.watch->start();
  watched.source->wait_for(2);
}

TEST(TopologyWatch, AStormOfSuspicionsMakesFewLooks) {
  constexpr Nanos kGapMin = 20 * kMilli;
  Watched watched(one_node);
  watched.watch->start();
  watched.source->wait_for(1);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!over) watched.watch->suspect();
    });
  }
  const auto looks = watched.source->wait_for(5);
  over = true;
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 1; i < looks.size(); ++i) {
    EXPECT_GE(looks[i].at - looks[i - 1].at, kGapMin);
  }
}

TEST(TopologyWatch, SendsOnWhatWasParked) {
  Watched watched(one_node);
  watched.watch->start();
  const auto batch = watched.driver.submit(Verb::kGet, {"a"});
  ASSERT_TRUE(Watched::soon([&] { return watched.driver.take() == "one:1=a"; }));
  watched.driver.redirect("a", "TRYAGAIN", monotonic_ns());
  watched.watch->suspect();  // a client's dispatcher does it
  ASSERT_TRUE(Watched::soon([&] { return watched.driver.take() == "one:1=a"; }));
  EXPECT_EQ(statuses(*batch), "PENDING");
}

TEST(TopologyWatch, ADefectOfTheSourceIsLoudAndNothingHangs) {
  Watched watched([](std::size_t) -> Result<SlotMap> { throw std::runtime_error("a defect"); });
  const auto batch = watched.driver.submit(Verb::kGet, {"a"});
  watched.watch->start();
  EXPECT_TRUE(batch->wait(monotonic_ns() + kPatience));
  EXPECT_EQ(statuses(*batch), "UNAVAILABLE");
  std::uint64_t dropped = 0;
  const auto lines = watched.driver.log().drain(dropped);
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines[0].level, LogLevel::kError);
  EXPECT_NE(lines[0].text.find("a defect"), std::string::npos);
}

TEST(TopologyWatch, ComesAndGoes) {
  for (int round = 0; round < 20; ++round) {
    Watched watched(one_node);
    if (round % 4 != 0) watched.watch->start();
    if (round % 4 == 2) watched.watch->suspect();
    if (round % 4 == 3) watched.source->wait_for(1);
  }
}

}  // namespace
}  // namespace kvferry::redis
