#pragma once
// WireLog: which commands leave a client, and when, as a link between it and its server sees them.
//
// Each command is a line of a file: nanoseconds of the monotonic clock, the connection, the name,
// the first argument. CommandReader takes the bytes of one connection in order, in any pieces, and
// looks at no more than that. A connection that does not speak RESP is left alone.
//
// Threads: one. Lifetime: the log outlives its readers.

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "bench/options.hpp"

namespace kvferry::bench {

class WireLog {
 public:
  // Without a path nothing is written.
  explicit WireLog(const std::string& path) {
    if (path.empty()) return;
    file_.reset(std::fopen(path.c_str(), "we"));
    if (!file_) die_errno(path);
  }

  void command(Nanos now, std::uint64_t connection, const std::string& name, std::string key) {
    if (!file_) return;
    std::replace_if(key.begin(), key.end(), [](unsigned char c) { return !std::isgraph(c); }, '.');
    std::fprintf(file_.get(), "%lld %llu %s %s\n", static_cast<long long>(now),
                 static_cast<unsigned long long>(connection), name.c_str(), key.c_str());
  }
  void flush() {
    if (file_) std::fflush(file_.get());
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
};

class CommandReader {
 public:
  CommandReader(WireLog& log, std::uint64_t connection) : log_(&log), connection_(connection) {}

  void take(std::string_view bytes, Nanos now) {
    while (!bytes.empty() && !opaque_) {
      if (body_ == 0) {
        line(bytes, now);
      } else {
        body(bytes);
      }
    }
  }
  // Bytes are missing, so where a command begins is not known any more.
  void lose() { opaque_ = true; }

 private:
  static constexpr std::size_t kLineBytesMax = 32;
  static constexpr std::size_t kKeptBytes = 120;

  // "*<words>" or "$<bytes>".
  void line(std::string_view& bytes, Nanos now) {
    const std::size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (end == std::string_view::npos) {
      opaque_ = line_.size() > kLineBytesMax;
      return;
    }
    const std::size_t number = std::strtoull(line_.c_str() + 1, nullptr, 10);
    if (words_ == 0 && line_[0] == '*') {
      words_ = number;
      word_ = 0;
      at_ = now;
    } else if (words_ != 0 && line_[0] == '$') {
      body_ = number + 2;
    } else {
      opaque_ = true;
    }
    line_.clear();
  }

  void body(std::string_view& bytes) {
    const std::size_t size = std::min(bytes.size(), body_);
    if (word_ < 2 && kept_[word_].size() < kKeptBytes) kept_[word_].append(bytes.substr(0, size));
    bytes.remove_prefix(size);
    body_ -= size;
    if (body_ != 0 || ++word_ != words_) return;
    for (std::string& kept : kept_) {
      while (!kept.empty() && (kept.back() == '\n' || kept.back() == '\r')) kept.pop_back();
    }
    log_->command(at_, connection_, kept_[0], kept_[1]);
    for (std::string& kept : kept_) kept.clear();
    words_ = 0;
  }

  WireLog* log_;
  std::uint64_t connection_;
  bool opaque_ = false;
  std::string line_;
  std::string kept_[2];
  std::size_t words_ = 0;  // of the command under way
  std::size_t word_ = 0;
  std::size_t body_ = 0;  // bytes that are left of a word, its end of line included
  Nanos at_ = 0;
};

}  // namespace kvferry::bench
