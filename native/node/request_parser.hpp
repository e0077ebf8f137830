#pragma once
// RequestParser: commands as clients send them, out of bytes that come in any pieces: arrays of
// bulks, and lines of words without quotes, as probes send them.
//
// The value of a SET is not taken in: next() stops in front of it and says how long it is; the
// caller moves those bytes where they belong and reports them with take_value(). Its argument stays
// empty. All other arguments are copied.
//
// Threads: none. Memory: arguments of one command, text_bytes_max with kArgumentCost for each, and
// nothing in advance for what is only announced. Failure: kBad is final; error() is the sentence to
// answer with, in the words of Valkey.
// Source: the Redis protocol specification; networking.c of Valkey for limits and words.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"

namespace kvferry::node {

struct RequestLimits {
  std::size_t value_bytes_max = std::size_t{512} << 20;
  std::size_t text_bytes_max = 8 * kMiB;
};

class RequestParser {
 public:
  enum class State : std::uint8_t {
    kNeedMore,
    kValue,    // value_remaining() bytes of the value come next
    kCommand,  // arguments() is complete, valid until next() is called again
    kBad,
  };
  static constexpr std::int64_t kArgumentsMax = 1024 * 1024;
  static constexpr std::size_t kLineBytesMax = 64 * kKiB;
  static constexpr std::size_t kArgumentCost = 32;

  explicit RequestParser(RequestLimits limits = {}) noexcept : limits_(limits) {}

  // Takes what it can from the front of `input`; `consumed` receives the bytes used. After
  // kNeedMore give it what was not consumed again, with more behind it.
  // Requires: value_remaining() == 0.
  State next(ByteView input, std::size_t& consumed);

  [[nodiscard]] std::size_t value_remaining() const noexcept { return value_remaining_; }
  // Requires: count <= value_remaining().
  void take_value(std::size_t count) noexcept { value_remaining_ -= count; }

  [[nodiscard]] const std::vector<std::string>& arguments() const noexcept { return arguments_; }
  // Memory of the arguments.
  [[nodiscard]] std::size_t held_bytes() const noexcept {
    return arguments_.capacity() * sizeof(std::string) + text_bytes_ - text_remaining_;
  }
  // Gives back the memory of many arguments. Requires: what next() said was kCommand.
  void forget() noexcept;
  // Whether the value of this command was handed to the caller.
  [[nodiscard]] bool value_apart() const noexcept { return value_apart_; }
  [[nodiscard]] bool at_boundary() const noexcept {
    return step_ == Step::kStart || step_ == Step::kDone;
  }
  [[nodiscard]] std::string_view error() const noexcept { return error_; }

  // Until somebody has said who he is, he may say little.
  void set_authenticated(bool authenticated) noexcept { authenticated_ = authenticated; }

 private:
  enum class Step : std::uint8_t { kStart, kHeader, kText, kTrailer, kDone, kBad };

  State start(ByteView input, std::size_t& consumed);
  State header(ByteView input, std::size_t& consumed);
  State inline_command(std::string_view line);
  State bad(std::string_view why);
  void argument_ended() noexcept;

  RequestLimits limits_;
  std::vector<std::string> arguments_;
  std::int64_t expected_ = 0;       // arguments still to come
  std::size_t text_remaining_ = 0;  // of the argument that arrives
  std::size_t value_remaining_ = 0;
  std::size_t text_bytes_ = 0;
  Step step_ = Step::kStart;
  bool value_apart_ = false;
  bool authenticated_ = true;
  std::string error_;
};

}  // namespace kvferry::node
