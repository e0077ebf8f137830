#pragma once
// Parser: an incremental RESP2/RESP3 tokenizer that never sees payload.
//
// It reads lines from bytes that the caller received. At a bulk it stops and says how long the
// payload is; the caller moves those bytes to where they belong - straight from the socket, if it
// likes - and reports them with take_payload(). The parser checks lengths, nesting and trailers.
//
// Threads: none; one parser per connection. Memory: a fixed stack, no allocation.
// Failure: kBad is final. The stream is out of step and its connection must be closed.
// Format: RESP3 specification; streamed strings and aggregates are refused (no server sends them).

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bytes.hpp"

namespace kvferry::resp {

enum class Type : std::uint8_t {
  kNeedMore,    // the input holds no complete token: receive more
  kSimple,      // +  text
  kError,       // -  text
  kInteger,     // :  integer
  kNull,        // $-1, *-1, _
  kDouble,      // ,  text
  kBoolean,     // #  integer 0/1
  kBigNumber,   // (  text
  kBulk,        // $ integer = length; payload follows
  kBulkError,   // ! likewise
  kVerbatim,    // = likewise
  kPayloadEnd,  // the payload and its trailer are complete
  kArray,       // * integer = elements that follow
  kSet,         // ~ likewise
  kPush,        // > likewise; not a reply
  kMap,         // % integer = elements that follow (two per entry)
  kAttribute,   // | likewise; belongs to the reply after it
  kBad,         // protocol violation; text says what
};

struct Token {
  Type type = Type::kNeedMore;
  std::int64_t integer = 0;
  std::string_view text;    // into the caller's input; valid as long as that is
  std::uint8_t depth = 0;   // 0: top level
  bool ends_reply = false;  // completes a top-level reply
  bool in_extra = false;    // belongs to a push or an attribute, which are not replies
};

class Parser {
 public:
  static constexpr std::size_t kDepthMax = 16;
  static constexpr std::size_t kLineBytesMax = 8 * kKiB;
  static constexpr std::int64_t kElementsMax = std::int64_t{1} << 31;

  explicit Parser(std::int64_t bulk_bytes_max = std::int64_t{1} << 30) noexcept
      : bulk_bytes_max_(bulk_bytes_max) {}

  // Takes one token from the front of `input`; `consumed` receives the bytes used.
  // Requires: payload_remaining() == 0.
  Token next(ByteView input, std::size_t& consumed) noexcept;

  // Payload bytes that the caller still has to move.
  [[nodiscard]] std::uint64_t payload_remaining() const noexcept { return payload_; }

  // The caller moved `count` payload bytes. Requires: count <= payload_remaining().
  void take_payload(std::uint64_t count) noexcept { payload_ -= count; }

  // Whether the stream stands between two replies: nothing is half-read.
  [[nodiscard]] bool at_boundary() const noexcept { return depth_ == 0 && !in_payload_ && !bad_; }

 private:
  struct Level {
    std::int64_t remaining;  // elements still to come
    bool extra;              // a push or an attribute, or inside one
    bool attribute;          // does not count as an element of the level around it
  };

  Token line(char type, std::string_view text) noexcept;
  Token open_bulk(Type type, std::string_view text) noexcept;
  Token open_aggregate(Type type, std::string_view text) noexcept;
  Token scalar(Token token) noexcept;
  Token bad(std::string_view reason) noexcept;
  // One element ended: close the levels that it completes, and say so in the token.
  void element_ended(Token& token) noexcept;
  [[nodiscard]] bool in_extra() const noexcept { return depth_ > 0 && stack_[depth_ - 1].extra; }

  std::array<Level, kDepthMax> stack_{};
  std::uint8_t depth_ = 0;
  std::uint64_t payload_ = 0;
  bool in_payload_ = false;
  bool bad_ = false;
  std::int64_t bulk_bytes_max_;
};

}  // namespace kvferry::resp
