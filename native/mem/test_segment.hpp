#pragma once
// For tests: names in /dev/shm that are gone afterwards, and what stands behind them.

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <string>

namespace kvferry::mem {

struct TestPath {
  TestPath() {
    static std::atomic<int> count{0};
    text = "/dev/shm/kvferry-test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
    ::unlink(text.c_str());
  }
  ~TestPath() { ::unlink(text.c_str()); }
  TestPath(const TestPath&) = delete;
  TestPath& operator=(const TestPath&) = delete;

  [[nodiscard]] struct stat stat() const {
    struct stat is{};
    ::lstat(text.c_str(), &is);
    return is;
  }
  [[nodiscard]] bool exists() const { return ::access(text.c_str(), F_OK) == 0; }
  [[nodiscard]] std::size_t backed_bytes() const {
    return static_cast<std::size_t>(stat().st_blocks) * 512;
  }

  std::string text;
};

}  // namespace kvferry::mem
