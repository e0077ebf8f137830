#pragma once
// LinkControl: what a link is told on stdin, a line each, and answers on stdout.
//
//     rtt 50    the round trip from now on, in milliseconds: "ok"
//     count     payload bytes to and from the server so far: "<up> <down>"; the log is flushed
//
// The end of stdin is the end of the link, so that it cannot outlive who started it.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/clock.hpp"
#include "bench/options.hpp"
#include "bench/wire_log.hpp"

namespace kvferry::bench {

class LinkControl {
 public:
  // Takes --rtt-ms and --log.
  explicit LinkControl(const Options& options)
      : rtt(from_seconds(options.real("--rtt-ms") / 1e3)), log(options.text("--log")) {}

  Nanos rtt;
  WireLog log;
  std::uint64_t up = 0;
  std::uint64_t down = 0;

  // Stdin is readable: whether it goes on.
  bool listen() {
    char bytes[256];
    const ssize_t size = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (size <= 0) return false;
    said_.append(bytes, static_cast<std::size_t>(size));
    for (std::size_t end = said_.find('\n'); end != std::string::npos; end = said_.find('\n')) {
      obey(said_.substr(0, end));
      said_.erase(0, end + 1);
    }
    return true;
  }

 private:
  void obey(const std::string& line) {
    if (line.rfind("rtt ", 0) == 0) {
      rtt = from_seconds(std::strtod(line.c_str() + 4, nullptr) / 1e3);
      std::puts("ok");
    } else if (line == "count") {
      log.flush();
      std::printf("%llu %llu\n", static_cast<unsigned long long>(up),
                  static_cast<unsigned long long>(down));
    } else {
      die("not a word of a link: " + line);
    }
    std::fflush(stdout);
  }
  std::string said_;
};

}  // namespace kvferry::bench
