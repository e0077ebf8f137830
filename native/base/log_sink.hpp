#pragma once
// LogSink: a bounded ring of log lines from I/O threads to whoever may print them.
//
// Threads: push() and drain() from any thread.
// Limits: lines_max lines; when full the newest line is dropped and counted, so that a broken
// server can neither fill memory nor slow the I/O threads.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace kvferry {

enum class LogLevel : std::uint8_t { kDebug = 10, kInfo = 20, kWarning = 30, kError = 40 };

struct LogLine {
  LogLevel level;
  std::string text;
};

class LogSink {
 public:
  explicit LogSink(std::size_t lines_max = 256) : lines_max_(lines_max) {}

  void push(LogLevel level, std::string text) noexcept;

  // Takes every line, oldest first. `dropped` receives the count lost since the last drain.
  std::vector<LogLine> drain(std::uint64_t& dropped);

 private:
  const std::size_t lines_max_;
  std::mutex mutex_;
  std::vector<LogLine> lines_;
  std::uint64_t dropped_ = 0;
};

}  // namespace kvferry
