#include "redis/credentials.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace kvferry::redis {
namespace {

constexpr Nanos kPatience = 10 * kSecond;

// Collects what a source answers: "user/password" or the error's text.
struct Answers {
  CredentialSource::Callback callback() {
    return [this](const Result<Credentials>& given) {
      texts.push_back(given ? given->username + "/" + given->password : given.error().context);
    };
  }
  std::vector<std::string> texts;
};

TEST(CredentialSource, OneAnswerIsForEverybodyWhoWaits) {
  CredentialSource source;
  Answers answers;
  for (int i = 0; i < 3; ++i) source.request(answers.callback());
  EXPECT_TRUE(source.await_request(monotonic_ns() + kPatience));
  EXPECT_EQ(source.version(), 0u);
  source.provide(Credentials{"me", "one"});
  EXPECT_EQ(answers.texts, (std::vector<std::string>{"me/one", "me/one", "me/one"}));
  EXPECT_EQ(source.version(), 1u);
  EXPECT_FALSE(source.await_request(0)) << "nobody waits any more";
  source.provide(Credentials{"me", "two"});
  EXPECT_EQ(answers.texts.size(), 3u) << "each is called back once";
  EXPECT_EQ(source.version(), 2u);
  EXPECT_EQ(source.current().password, "two");
}

TEST(CredentialSource, AProviderThatHangsIsNotOwedMoreAndMoreAnswers) {
  CredentialSource source;
  Answers forgotten;
  source.request(forgotten.callback());
  Answers answers;
  for (std::size_t i = 0; i < CredentialSource::kWaitingMax; ++i) {
    source.request(answers.callback());
  }
  source.provide(Credentials{.username = "me", .password = "now"});
  EXPECT_EQ(forgotten.texts.size(), 0u);
  EXPECT_EQ(answers.texts.size(), CredentialSource::kWaitingMax);
}

TEST(CredentialSource, AnErrorReachesThoseWhoWaitAndNobodyElse) {
  CredentialSource source;
  source.provide(Credentials{"me", "one"});
  Answers answers;
  source.request(answers.callback());
  source.provide(Error{Errc::kAuth, "the provider failed"});
  EXPECT_EQ(answers.texts, std::vector<std::string>{"the provider failed"});
  EXPECT_EQ(source.version(), 1u) << "connections that are up go on with what they have";
  EXPECT_EQ(source.current().password, "one");
  source.request(answers.callback());
  source.provide(Credentials{"me", "two"});
  EXPECT_EQ(answers.texts.back(), "me/two");
}

TEST(CredentialSource, WaitsUntilTheMomentThatIsNamed) {
  CredentialSource source;
  const Nanos begin = monotonic_ns();
  EXPECT_FALSE(source.await_request(begin + 20 * kMilli));
  EXPECT_GE(monotonic_ns() - begin, 20 * kMilli);
  EXPECT_FALSE(source.await_request(begin - kSecond)) << "a moment that has passed";
}

TEST(CredentialSource, ARequestWakesTheProvider) {
  CredentialSource source;
  std::promise<bool> asked;
  std::thread provider([&] { asked.set_value(source.await_request(monotonic_ns() + kPatience)); });
  Answers answers;
  source.request(answers.callback());
  EXPECT_TRUE(asked.get_future().get());
  provider.join();
}

TEST(CredentialSource, ClosingWakesTheProviderAndForgetsWhoWaits) {
  CredentialSource source;
  std::promise<bool> asked;
  std::thread provider([&] { asked.set_value(source.await_request(monotonic_ns() + kPatience)); });
  source.close();
  EXPECT_FALSE(asked.get_future().get());
  provider.join();
  Answers answers;
  source.request(answers.callback());
  source.provide(Credentials{"me", "late"});
  EXPECT_TRUE(source.closed());
  EXPECT_FALSE(source.await_request(monotonic_ns() + kPatience)) << "at once";
  EXPECT_TRUE(answers.texts.empty());
  EXPECT_EQ(source.version(), 0u);
}

TEST(CredentialSource, NoCallbackRunsOnceCloseHasReturned) {
  for (int round = 0; round < 50; ++round) {
    CredentialSource source;
    std::atomic<bool> closed{false};
    std::atomic<int> late{0};
    for (int i = 0; i < 20; ++i) {
      source.request([&](const auto&) { late += closed ? 1 : 0; });
    }
    std::thread provider([&] {
      while (!source.closed()) source.provide(Credentials{"me", "pw"});
    });
    if (round % 2 == 0) std::this_thread::yield();
    source.close();
    closed = true;
    provider.join();
    EXPECT_EQ(late, 0);
  }
}

TEST(CredentialSource, ManyAskAndEachIsAnsweredOnce) {
  CredentialSource source;
  std::atomic<int> answered{0};
  constexpr int kThreads = 4;
  constexpr int kRequests = 500;
  std::thread provider([&] {
    while (source.await_request(monotonic_ns() + kPatience)) {
      source.provide(Credentials{"me", "pw"});
    }
  });
  std::vector<std::thread> askers;
  for (int thread = 0; thread < kThreads; ++thread) {
    askers.emplace_back([&] {
      for (int i = 0; i < kRequests; ++i) {
        std::promise<void> done;
        source.request([&](const auto&) {
          answered.fetch_add(1);
          done.set_value();
        });
        done.get_future().wait_for(std::chrono::seconds(10));
      }
    });
  }
  for (std::thread& asker : askers) asker.join();
  source.close();
  provider.join();
  EXPECT_EQ(answered, kThreads * kRequests);
  EXPECT_LE(source.version(), static_cast<std::uint64_t>(kThreads * kRequests));
}

}  // namespace
}  // namespace kvferry::redis
