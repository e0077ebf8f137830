// Values whose place is named when they come.

#include "mem/buffer_source.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "fuzz/reply_driver.hpp"

namespace kvferry::redis {
namespace {

constexpr std::uint64_t kIdentity = 42;
const std::string kLarge(40'000, 'x');

class Targets final : public mem::BufferSource {
 public:
  explicit Targets(std::vector<GuardedTarget*> targets) : targets_(std::move(targets)) {}
  std::byte* buffer(std::size_t index) noexcept override {
    asked.push_back(index);
    return targets_[index] != nullptr ? targets_[index]->bytes().data() : nullptr;
  }
  [[nodiscard]] bool wanted() const noexcept override { return is_wanted; }

  std::vector<std::size_t> asked;
  bool is_wanted = true;

 private:
  std::vector<GuardedTarget*> targets_;
};

TEST(BufferSource, IsAskedWhenASoundValueComesAndNotBefore) {
  for (const std::size_t step : {1u, 3u, 63u, 64u, 65u, 66u, 100u, 4096u, 100'000u}) {
    GuardedTarget large(kLarge.size()), small(11);
    const auto targets =
        std::make_shared<Targets>(std::vector<GuardedTarget*>{nullptr, &large, nullptr, &small});
    Batch batch({.verb = Verb::kGet, .framed = true, .identity = kIdentity});
    batch.source = targets;
    const auto add = [&](std::string_view key, std::size_t size) {
      batch.add(key, {static_cast<std::byte*>(nullptr), size});
    };
    add("none", 11);
    add("large", kLarge.size());
    add("refused", 11);
    add("small", 11);
    ReplyDriver driver;
    driver.expect(batch);
    ASSERT_TRUE(driver.deliver("$-1\r\n", step));
    EXPECT_TRUE(targets->asked.empty());
    const std::string reply = framed_reply(frame_for("large", kLarge, kIdentity), kLarge);
    ASSERT_TRUE(driver.deliver(reply.substr(0, 70), step));  // "$40064\r\n" and 62 of 64 bytes
    EXPECT_TRUE(targets->asked.empty());
    ASSERT_TRUE(driver.deliver(reply.substr(70), step));
    ASSERT_TRUE(driver.deliver(
        framed_reply(frame_for("refused", "hello world", kIdentity), "hello world") +
            framed_reply(frame_for("small", "hello world", kIdentity), "hello world"),
        step));
    EXPECT_EQ(driver.trace(), "none=MISS large=OK refused=CANCELLED small=OK");
    EXPECT_EQ(targets->asked, (std::vector<std::size_t>{1, 2, 3}));
    EXPECT_EQ(large.text(), kLarge);
    EXPECT_EQ(small.text(), "hello world");
    EXPECT_TRUE(large.intact() && small.intact());
  }
}

TEST(BufferSource, IsNotAskedForAnythingElse) {
  const auto targets = std::make_shared<Targets>(std::vector<GuardedTarget*>(3));
  Batch batch({.verb = Verb::kGet, .framed = true, .identity = kIdentity});
  batch.source = targets;
  for (const std::string_view key : {"shape", "other", "short"}) {
    batch.add(key, {static_cast<std::byte*>(nullptr), 11});
  }
  ReplyDriver driver;
  driver.expect(batch);
  ASSERT_TRUE(driver.deliver(framed_reply(frame_for("shape", "hello", kIdentity), "hello") +
                             framed_reply(frame_for("other", "hello world", 7), "hello world") +
                             "$5\r\nhello\r\n"));
  EXPECT_TRUE(targets->asked.empty());
  EXPECT_TRUE(driver.trace().starts_with("shape=SIZE_MISMATCH")) << driver.trace();
}

TEST(BufferSource, WhatIsNotWantedNeedNotBeSent) {
  const auto targets = std::make_shared<Targets>(std::vector<GuardedTarget*>(1));
  Batch batch({.verb = Verb::kGet, .framed = true, .identity = kIdentity});
  batch.source = targets;
  batch.add("k", {static_cast<std::byte*>(nullptr), 11});
  EXPECT_EQ(batch.withdrawn(batch.commands()[0]), Status::kPending);
  targets->is_wanted = false;
  EXPECT_EQ(batch.withdrawn(batch.commands()[0]), Status::kCancelled);
}

// What a connection that broke had begun to receive lands in the same place when it is repeated.
TEST(BufferSource, SaysTheSameWhenACommandIsRepeated) {
  GuardedTarget large(kLarge.size());
  const auto targets = std::make_shared<Targets>(std::vector<GuardedTarget*>{&large});
  Batch batch({.verb = Verb::kGet, .framed = true, .identity = kIdentity});
  batch.source = targets;
  batch.add("large", {static_cast<std::byte*>(nullptr), kLarge.size()});
  const std::string reply = framed_reply(frame_for("large", kLarge, kIdentity), kLarge);
  {
    struct Sink final : ReplySink {
      void settled(Work, Status, Reason) override {}
      void redirected(Work, std::string_view) override {}
    } sink;
    Replies broken(sink, 1 << 20, 1 << 20);
    broken.expect({&batch, batch.commands().data()});
    std::string_view left = std::string_view(reply).substr(0, 1000);
    while (!left.empty()) {
      std::size_t moved = 0;
      for (const iovec& piece : broken.plan()) {
        const std::size_t part = std::min(piece.iov_len, left.size() - moved);
        if (part > 0) std::memcpy(piece.iov_base, left.data() + moved, part);
        moved += part;
      }
      left.remove_prefix(moved);
      ASSERT_TRUE(broken.received(moved));
    }
    broken.abandon([](Work) {});
  }
  ReplyDriver driver;
  driver.expect(batch);
  ASSERT_TRUE(driver.deliver(reply, 100));
  EXPECT_EQ(driver.trace(), "large=OK");
  EXPECT_EQ(large.text(), kLarge);
  EXPECT_TRUE(large.intact());
}

}  // namespace
}  // namespace kvferry::redis
