#include <gtest/gtest.h>
#include <poll.h>

#include "base/clock.hpp"
#include "base/event_fd.hpp"
#include "base/log_sink.hpp"
#include "base/result.hpp"
#include "base/test_names.hpp"

namespace kvferry {
namespace {

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(Result, HoldsAValueOrAnError) {
  Result<int> good = 7;
  Result<int> bad = Error{Errc::kTimeout, "late"};
  EXPECT_TRUE(good.has_value());
  EXPECT_EQ(*good, 7);
  EXPECT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().code, Errc::kTimeout);
}

TEST(EventFd, ManySignalsAreOneWakeUp) {
  auto event = EventFd::open();
  ASSERT_TRUE(event.has_value());
  EXPECT_FALSE(readable(event->fd()));
  event->signal();
  event->signal();
  EXPECT_TRUE(readable(event->fd()));
  event->clear();
  EXPECT_FALSE(readable(event->fd()));
}

TEST(LogSink, DropsAndCountsWhenFull) {
  LogSink sink(2);
  for (const char* text : {"a", "b", "c"}) sink.push(LogLevel::kWarning, text);
  std::uint64_t dropped = 0;
  const auto lines = sink.drain(dropped);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].text, "a");
  EXPECT_EQ(dropped, 1u);
  EXPECT_TRUE(sink.drain(dropped).empty());
  EXPECT_EQ(dropped, 0u);
}

TEST(Clock, NeverAbsorbs) {
  EXPECT_EQ(add_time(kNever, kSecond), kNever);
  EXPECT_EQ(add_time(1, 2), 3);
}

TEST(Errors, NamesAreWhatPythonShows) {
  EXPECT_EQ(name(Status::kSizeMismatch), "SIZE_MISMATCH");
  EXPECT_NE(system_error("open", 2).context.find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace kvferry
