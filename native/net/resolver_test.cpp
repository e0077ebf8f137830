#include "net/resolver.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/test_no_threads.hpp"

namespace kvferry::net {
namespace {

Endpoint tcp(const std::string& host, std::uint16_t port) { return {host, port, {}}; }

TEST(Resolver, CallsBackOnceForEachRequest) {
  Resolver resolver;
  std::promise<void> all;
  std::vector<std::size_t> addresses;
  for (const char* host : {"127.0.0.1", "a name with spaces", "::1"}) {
    resolver.request(tcp(host, 1), [&](Result<std::vector<Address>> found) {
      addresses.push_back(found ? found->size() : 0);
      if (addresses.size() == 3) all.set_value();
    });
  }
  all.get_future().wait();
  std::ranges::sort(addresses);
  EXPECT_EQ(addresses, (std::vector<std::size_t>{0, 1, 1}));
}

TEST(Resolver, ALookUpThatThrowsIsAnErrorAndTheNextOneIsMade) {
  Resolver resolver([](const Endpoint& endpoint) -> Result<std::vector<Address>> {
    if (endpoint.host == "bad") throw std::bad_alloc();
    return Error{Errc::kConnect, endpoint.host};
  });
  for (const std::string& host : {"bad", "good", "bad"}) {
    std::promise<std::string> said;
    resolver.request(tcp(host, 1), [&](const Result<std::vector<Address>>& found) {
      said.set_value(found ? "" : found.error().context);
    });
    EXPECT_NE(said.get_future().get().find(host), std::string::npos);
  }
}

// Look-ups that end when told to, as if a DNS server were silent until then.
struct SilentNames {
  std::promise<void> speak;
  std::shared_future<void> spoken = speak.get_future().share();
  std::mutex mutex;
  std::vector<std::string> asked;

  Resolver::LookUp look_up() {
    return [this](const Endpoint& endpoint) -> Result<std::vector<Address>> {
      {
        const std::lock_guard lock(mutex);
        asked.push_back(endpoint.host);
      }
      if (endpoint.host.starts_with("silent")) spoken.wait();
      return Error{Errc::kConnect, endpoint.host};
    };
  }
};

TEST(Resolver, OneLookUpAnswersAllThatAskForTheSame) {
  SilentNames names;
  std::atomic<int> answers{0};
  std::promise<void> all;
  {
    Resolver resolver(names.look_up());
    for (int i = 0; i < 100; ++i) {
      resolver.request(tcp("silent", 1), [&](auto) {
        if (++answers == 100) all.set_value();
      });
    }
    names.speak.set_value();
    all.get_future().wait();
  }
  EXPECT_LE(names.asked.size(), 2u) << "one that may have ended before the last asked";
}

TEST(Resolver, SomeSilentNamesDoNotHoldUpTheOthers) {
  SilentNames names;
  Resolver resolver(names.look_up());
  std::atomic<int> silent{0};
  std::promise<void> all;
  for (std::size_t i = 0; i + 1 < Resolver::kThreads; ++i) {
    resolver.request(tcp("silent-" + std::to_string(i), 1), [&](auto) {
      if (++silent + 1 == static_cast<int>(Resolver::kThreads)) all.set_value();
    });
  }
  std::promise<void> answered;
  resolver.request(tcp("good", 1), [&](auto) { answered.set_value(); });
  answered.get_future().wait();
  EXPECT_EQ(silent, 0);
  names.speak.set_value();
  all.get_future().wait();
}

TEST(Resolver, WhoWaitsForASilentNameIsForgottenInTheEnd) {
  SilentNames names;
  Resolver resolver(names.look_up());
  std::atomic<std::size_t> answers{0};
  std::promise<void> last;
  for (std::size_t i = 0; i < 2 * Resolver::kWaitingMax; ++i) {
    resolver.request(tcp("silent", 1), [&, i](auto) {
      ++answers;
      if (i + 1 == 2 * Resolver::kWaitingMax) last.set_value();
    });
  }
  names.speak.set_value();
  last.get_future().wait();
  EXPECT_EQ(answers, Resolver::kWaitingMax);
}

TEST(Resolver, AThreadThatCannotStartNowIsTriedAgain) {
  Resolver resolver;
  {
    const NoThreads none;
    for (int turn = 0; turn < 3; ++turn) {
      int called = 0;
      resolver.request(tcp("127.0.0.1", 1), [&](auto found) {
        ++called;
        ASSERT_FALSE(found);
        EXPECT_EQ(found.error().code, Errc::kSystem);
        EXPECT_NE(found.error().context.find("127.0.0.1"), std::string::npos);
      });
      EXPECT_EQ(called, 1) << "it must not be waited for";
    }
  }
  std::promise<bool> found;
  resolver.request(tcp("127.0.0.1", 1), [&](auto addresses) { found.set_value(bool(addresses)); });
  auto answer = found.get_future();
  ASSERT_EQ(answer.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_TRUE(answer.get());
}

TEST(Resolver, WithoutMoreThreadsTheOneThatThereIsAnswersAll) {
  SilentNames names;
  Resolver resolver(names.look_up());
  std::promise<void> silent;
  resolver.request(tcp("silent", 1), [&](auto) { silent.set_value(); });
  std::promise<void> other;
  {
    const NoThreads none;
    resolver.request(tcp("other", 1), [&](auto found) {
      EXPECT_EQ(found.error().code, Errc::kConnect);
      other.set_value();
    });
  }
  names.speak.set_value();
  for (std::promise<void>* answer : {&silent, &other}) {
    EXPECT_EQ(answer->get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  }
}

TEST(Resolver, ACallbackMayAskAgain) {
  Resolver resolver;
  std::promise<void> second;
  resolver.request(tcp("127.0.0.1", 1), [&](auto) {
    resolver.request(tcp("127.0.0.1", 2), [&](auto) { second.set_value(); });
  });
  second.get_future().wait();
}

TEST(Resolver, ItsEndWaitsForTheCallbackThatRuns) {
  auto resolver = std::make_unique<Resolver>();
  std::promise<void> inside;
  std::promise<void> proceed;
  std::atomic<bool> returned{false};
  resolver->request(tcp("127.0.0.1", 1), [&](auto) {
    inside.set_value();
    proceed.get_future().wait();
    returned = true;
  });
  inside.get_future().wait();
  std::promise<bool> destroyed;
  auto outcome = destroyed.get_future();
  std::thread destroyer([&] {
    resolver.reset();
    destroyed.set_value(returned);
  });
  EXPECT_EQ(outcome.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout);
  proceed.set_value();
  EXPECT_TRUE(outcome.get()) << "it was destroyed under a callback that runs";
  destroyer.join();
}

TEST(Resolver, NoCallbackRunsOnceItIsGone) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> called{0};
    auto resolver = std::make_unique<Resolver>();
    for (int i = 0; i < 500; ++i) {
      resolver->request(tcp("127.0.0.1", 1), [&](auto) { called.fetch_add(1); });
    }
    resolver.reset();
    const int before = called;
    Resolver another;  // passes the time that a late callback would need
    std::promise<void> done;
    another.request(tcp("127.0.0.1", 1), [&](auto) { done.set_value(); });
    done.get_future().wait();
    EXPECT_EQ(called, before);
  }
}

TEST(Resolver, ComesAndGoesWithoutWork) {
  for (int round = 0; round < 20; ++round) {
    Resolver idle;
    Resolver busy;
    busy.request(tcp("127.0.0.1", 1), [](auto) {});
  }
}

}  // namespace
}  // namespace kvferry::net
