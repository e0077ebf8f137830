#include "base/log_sink.hpp"

#include <new>
#include <utility>

namespace kvferry {

void LogSink::push(LogLevel level, std::string text) noexcept {
  const std::lock_guard lock(mutex_);
  if (lines_.size() >= lines_max_) {
    ++dropped_;
    return;
  }
  try {
    lines_.push_back(LogLine{level, std::move(text)});
  } catch (const std::bad_alloc&) {
    ++dropped_;
  }
}

std::vector<LogLine> LogSink::drain(std::uint64_t& dropped) {
  const std::lock_guard lock(mutex_);
  dropped = std::exchange(dropped_, 0);
  return std::exchange(lines_, {});
}

}  // namespace kvferry
