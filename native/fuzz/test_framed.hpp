#pragma once
// What becomes of one framed value between two others: for tests of Replies.
// Lifetime: nothing outlives a call. Failure: wrong bytes, or bytes beside their place, fail a
// test.

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "fuzz/reply_driver.hpp"

namespace kvferry::redis {

inline constexpr std::uint64_t kIdentity = 42;

// The trace of a GET of "k", whose value is to be `content`, and of a command behind it; with "!"
// where the stream is poisoned.
inline std::string framed_outcome(std::string_view content, const std::string& reply,
                                  std::size_t step, std::size_t drain_bytes_max) {
  GuardedTarget target(content.size());
  Batch batch({.verb = Verb::kGet, .framed = true, .identity = kIdentity});
  batch.add("k", target.bytes());
  Batch next({.verb = Verb::kTouch});
  next.add("n", {});
  ReplyDriver driver(drain_bytes_max);
  driver.expect(batch);
  driver.expect(next);
  const bool alive = driver.deliver(reply + ":1\r\n", step);
  EXPECT_TRUE(target.intact());
  if (batch.commands()[0].status == Status::kOk) {
    EXPECT_TRUE(target.text() == content) << "wrong bytes";
    EXPECT_EQ(batch.commands()[0].found, content.size());
  }
  return driver.trace() + (alive ? "" : "!");
}

}  // namespace kvferry::redis
