// redis::Handshake against any server: however the answers are cut, the talk is the same, and the
// password is never part of the error.
//
// Input: a line of settings - p password, u user, d database, n no name, 2 RESP2 - and what the
// server sends.
#include <algorithm>
#include <string>

#include "base/test_names.hpp"
#include "fuzz/fuzz.hpp"
#include "redis/handshake.hpp"

namespace {

using kvferry::as_bytes;
using kvferry::Errc;
using kvferry::fuzz::require;
using namespace kvferry::redis;

constexpr std::string_view kPassword = "hunter2";
constexpr std::size_t kStreamBytesMax = 32 * 1024;

Config config_from(std::string_view settings) {
  Config config;
  const auto has = [&](char c) { return settings.find(c) != std::string_view::npos; };
  if (has('p')) config.password = kPassword;
  if (has('u')) config.username = "reader";
  if (has('d')) config.database = 3;
  if (has('n')) config.client_name.clear();
  if (has('2')) config.protocol = 2;
  return config;
}

void take_sent(Outbox& outbox, std::string& sent) {
  while (!outbox.empty()) {
    const iovec piece = outbox.pieces().front();
    sent.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    outbox.sent(piece.iov_len);
  }
}

std::string talk(const Config& config, std::string_view stream, kvferry::fuzz::Cutting cutting) {
  kvferry::fuzz::Pieces pieces(cutting, stream);
  Handshake handshake(config);
  Outbox outbox;
  std::string trace;
  handshake.begin(outbox);
  auto state = Handshake::State::kRunning;
  while (!stream.empty() && state == Handshake::State::kRunning) {
    take_sent(outbox, trace);
    const std::string_view piece = stream.substr(0, pieces.next());
    state = handshake.receive(as_bytes(piece), outbox);
    stream.remove_prefix(piece.size());
  }
  take_sent(outbox, trace);
  trace += "state " + std::to_string(static_cast<int>(state));
  if (state == Handshake::State::kReady) {
    const ServerInfo& info = handshake.info();
    require(config.protocol == 3 || info.protocol == 2, "RESP3 although RESP2 was asked for");
    trace += " " + info.server + "|" + info.version + "|" + info.mode + "|" +
             std::to_string(info.protocol);
  }
  if (state == Handshake::State::kFailed) {
    const kvferry::Error& error = handshake.error();
    require(config.password.empty() || error.context.find(kPassword) == std::string::npos,
            "the password was told", error.context);
    require(std::ranges::all_of(error.context, [](char c) { return c >= 0x20 && c < 0x7f; }),
            "an error is not printable", error.context);
    trace += " " + std::string(name(error.code));
    // Which fault of the protocol is named first may depend on what has arrived.
    if (error.code != Errc::kProtocol) trace += " " + error.context;
  }
  return trace;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = kvferry::fuzz::as_input(data, size);
  const std::size_t line = std::min(input.find('\n'), input.size());
  const Config config = config_from(input.substr(0, line));
  std::string_view stream = input.substr(std::min(line + 1, input.size()));
  stream = stream.substr(0, kStreamBytesMax);
  const std::string whole = talk(config, stream, kvferry::fuzz::Cutting::kWhole);
  for (const auto cutting : kvferry::fuzz::kCuttings) {
    const std::string other = talk(config, stream, cutting);
    require(other == whole, "the cut changes the talk", whole + "\n" + other);
  }
  return 0;
}
