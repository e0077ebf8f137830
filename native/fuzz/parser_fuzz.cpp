// resp::Parser on any bytes: however they are cut, the tokens are the same.
#include <algorithm>
#include <string>

#include "fuzz/fuzz.hpp"
#include "resp/parser.hpp"

namespace {

using kvferry::as_bytes;
using kvferry::fuzz::require;
using kvferry::resp::Parser;
using kvferry::resp::Token;
using kvferry::resp::Type;

// One word per token. A small limit on bulks, so that short inputs reach it.
std::string trace(std::string_view input, kvferry::fuzz::Cutting cutting) {
  Parser parser(64 * 1024);
  kvferry::fuzz::Pieces pieces(cutting, input);
  std::string out;
  std::size_t begin = 0;  // of what is not consumed
  std::size_t end = 0;    // of what has arrived
  while (end < input.size()) {
    end += std::min(pieces.next(), input.size() - end);
    for (;;) {
      const std::string_view held = input.substr(begin, end - begin);
      if (parser.payload_remaining() > 0) {
        const auto part = std::min<std::uint64_t>(held.size(), parser.payload_remaining());
        parser.take_payload(part);
        begin += part;
        if (parser.payload_remaining() > 0) break;
        continue;
      }
      std::size_t consumed = 0;
      const Token token = parser.next(as_bytes(held), consumed);
      require(consumed <= held.size(), "the parser consumed what it was not given");
      if (token.type == Type::kNeedMore) {
        require(consumed == 0, "a token that is not complete was consumed");
        break;
      }
      begin += consumed;
      out += std::to_string(static_cast<int>(token.type));
      if (token.type == Type::kBad) {  // which fault is named first may depend on what is there
        require(parser.next(as_bytes("+OK\r\n"), consumed).type == Type::kBad, "bad is not final");
        require(!parser.at_boundary(), "a bad stream stands at a boundary");
        return out;
      }
      require(token.depth <= Parser::kDepthMax, "the nesting limit does not hold");
      require(!token.ends_reply || parser.at_boundary(), "a reply ended inside another");
      require(!token.ends_reply || !token.in_extra, "an extra counts as a reply");
      out += "@" + std::to_string(token.depth) + "(" + std::string(token.text) + "," +
             std::to_string(token.integer) + ")" + (token.in_extra ? "x" : "") +
             (token.ends_reply ? "! " : " ");
    }
  }
  return out + "at " + std::to_string(begin);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = kvferry::fuzz::as_input(data, size);
  const std::string whole = trace(input, kvferry::fuzz::Cutting::kWhole);
  for (const auto cutting : kvferry::fuzz::kCuttings) {
    const std::string other = trace(input, cutting);
    require(other == whole, "the cut changes the tokens", whole + "\n" + other);
  }
  return 0;
}
