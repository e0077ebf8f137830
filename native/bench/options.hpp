#pragma once
// Options: `--name value` and `--flag` for the bench programs, which have no other dependency.
//
// Failure: die() prints one line on stderr and ends the process with code 1, from any thread,
// because a measurement with a broken part has no result.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

namespace kvferry::bench {

[[noreturn]] inline void die(const std::string& text) {
  std::fprintf(stderr, "error: %s\n", text.c_str());
  ::_exit(1);
}

[[noreturn]] inline void die_errno(const std::string& action) {
  die(action + ": " + std::strerror(errno));
}

class Options {
 public:
  // `values` holds the default of each option that takes a value; `flags` those that take none.
  // `--help` prints `manual`. An unknown option ends the process.
  Options(int argc, char** argv, const char* manual, std::map<std::string, std::string> values,
          const std::set<std::string>& flags)
      : values_(std::move(values)) {
    for (int i = 1; i < argc; ++i) {
      const std::string name = argv[i];
      if (name == "--help") {
        std::fputs(manual, stdout);
        std::exit(0);
      }
      if (flags.count(name) != 0) {
        given_.insert(name);
      } else if (const auto found = values_.find(name); found != values_.end() && i + 1 < argc) {
        found->second = argv[++i];
      } else {
        die("unknown option or missing value: " + name + " (see --help)");
      }
    }
  }

  [[nodiscard]] bool has(const std::string& flag) const { return given_.count(flag) != 0; }
  [[nodiscard]] const std::string& text(const std::string& name) const { return values_.at(name); }
  [[nodiscard]] std::size_t number(const std::string& name) const {
    char* end = nullptr;
    const std::string& value = values_.at(name);
    const auto result = std::strtoull(value.c_str(), &end, 10);
    if (value.empty() || value[0] == '-' || *end != '\0') die(name + " wants a whole number");
    return result;
  }
  [[nodiscard]] double real(const std::string& name) const {
    char* end = nullptr;
    const double result = std::strtod(values_.at(name).c_str(), &end);
    if (values_.at(name).empty() || *end != '\0') die(name + " wants a number");
    return result;
  }

 private:
  std::map<std::string, std::string> values_;
  std::set<std::string> given_;
};

}  // namespace kvferry::bench
