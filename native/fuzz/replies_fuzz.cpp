// redis::Replies with commands in flight and any stream: no byte outside the targets or after a
// release, one outcome for each command, framed values whole or not at all, and the same for every
// cut.
//
// Input: a line of words, then what the server sends. Words: G5 a GET into 5 bytes, F5 a framed
// one, S5 a SET, E T D the small commands, P a ping; !2@30 cancels command 2 once 30 bytes came,
// ?2@30 lets its deadline pass. In the stream @c is the right answer to command c (a is the first),
// and &cX the same with the bit-flipped byte that X picks.
#include <algorithm>
#include <charconv>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "fuzz/reply_driver.hpp"

namespace {

using namespace kvferry::redis;
using kvferry::MutableBytes;
using kvferry::Nanos;
using kvferry::Status;
using kvferry::Verb;
using kvferry::fuzz::require;

constexpr std::size_t kCommandsMax = 12;
constexpr std::size_t kTargetBytesMax = 70'000;
constexpr std::size_t kStreamBytesMax = 200'000;
constexpr std::size_t kDrainBytesMax = 2000;
constexpr std::uint64_t kIdentity = 42;
constexpr Nanos kDeadline = 1000;

struct Planned {
  char kind;
  std::size_t size;
};

struct Withdrawal {
  std::size_t command;
  std::size_t position;
  bool expires;
};

struct Scenario {
  std::vector<Planned> commands;
  std::vector<Withdrawal> withdrawals;  // by position
  std::string stream;
};

std::size_t take_number(std::string_view& text) {
  std::size_t number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number).ptr;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::string key_of(std::size_t command) { return std::string(1, static_cast<char>('a' + command)); }

std::string payload_of(std::size_t command, std::size_t size) {
  std::string payload(size, '\0');
  for (std::size_t i = 0; i < size; ++i) payload[i] = static_cast<char>(31 * i + 7 * command + 1);
  return payload;
}

std::string right_answer(std::size_t index, const Planned& command) {
  const std::string payload = payload_of(index, command.size);
  switch (command.kind) {
    case 'G':
      return "$" + std::to_string(payload.size()) + "\r\n" + payload + "\r\n";
    case 'F':
      return framed_reply(frame_for(key_of(index), payload, kIdentity), payload);
    case 'S':
      return "+OK\r\n";
    case 'P':
      return "+PONG\r\n";
    default:
      return ":1\r\n";
  }
}

Scenario read(std::string_view input) {
  Scenario scenario;
  const std::size_t line = std::min(input.find('\n'), input.size());
  std::string_view words = input.substr(0, line);
  while (!words.empty()) {
    const char kind = words.front();
    words.remove_prefix(1);
    if (kind == '!' || kind == '?') {
      const std::size_t command = take_number(words);
      if (!words.empty()) words.remove_prefix(1);
      scenario.withdrawals.push_back({command, take_number(words), kind == '?'});
    } else if (std::string_view("GFSETDP").find(kind) != std::string_view::npos &&
               scenario.commands.size() < kCommandsMax) {
      scenario.commands.push_back({kind, std::min(take_number(words), kTargetBytesMax)});
    }
  }
  std::erase_if(scenario.withdrawals,
                [&](const Withdrawal& w) { return w.command >= scenario.commands.size(); });
  std::ranges::stable_sort(scenario.withdrawals, {}, &Withdrawal::position);

  std::string_view rest = input.substr(std::min(line + 1, input.size()));
  std::string& stream = scenario.stream;
  while (!rest.empty() && stream.size() < kStreamBytesMax) {
    const std::size_t index = rest.size() > 1 ? static_cast<std::size_t>(rest[1] - 'a') : SIZE_MAX;
    const bool known = index < scenario.commands.size();
    if (rest[0] == '@' && known) {
      stream += right_answer(index, scenario.commands[index]);
      rest.remove_prefix(2);
    } else if (rest[0] == '&' && known && rest.size() > 2) {
      std::string answer = right_answer(index, scenario.commands[index]);
      char& flipped = answer[static_cast<unsigned char>(rest[2]) * answer.size() / 256];
      flipped = static_cast<char>(flipped ^ (1 << (rest[2] & 7)));
      stream += answer;
      rest.remove_prefix(3);
    } else {
      stream += rest[0];
      rest.remove_prefix(1);
    }
  }
  return scenario;
}

Verb verb_of(char kind) {
  switch (kind) {
    case 'S':
      return Verb::kSet;
    case 'E':
      return Verb::kExists;
    case 'T':
      return Verb::kTouch;
    case 'D':
      return Verb::kDelete;
    default:
      return Verb::kGet;
  }
}

// One run of a scenario; every command is a batch of its own.
class Run {
 public:
  explicit Run(const Scenario& scenario) : scenario_(scenario) {
    for (std::size_t index = 0; index < scenario.commands.size(); ++index) {
      const Planned& command = scenario.commands[index];
      targets_.emplace_back(command.size);
      const bool expires = std::ranges::any_of(scenario.withdrawals, [&](const Withdrawal& w) {
        return w.command == index && w.expires;
      });
      Batch& batch =
          batches_.emplace_back(Batch::Options{.verb = verb_of(command.kind),
                                               .deadline = expires ? kDeadline : kvferry::kNever,
                                               .framed = command.kind == 'F',
                                               .identity = kIdentity});
      const bool has_payload = std::string_view("GFS").find(command.kind) != std::string_view::npos;
      batch.add(key_of(index), has_payload ? targets_.back().bytes() : MutableBytes{});
      if (command.kind == 'P') {
        driver_.expect_ping();
      } else {
        driver_.expect(batch);
      }
    }
    released_.resize(scenario.commands.size());
  }

  std::string trace(kvferry::fuzz::Cutting cutting) {
    kvferry::fuzz::Pieces pieces(cutting, scenario_.stream);
    std::string_view rest = scenario_.stream;
    std::size_t position = 0;
    bool alive = true;
    for (const Withdrawal& withdrawal : scenario_.withdrawals) {
      const std::string_view part =
          rest.substr(0, withdrawal.position - std::min(withdrawal.position, position));
      alive = alive && driver_.deliver(part, [&] { return pieces.next(); });
      rest.remove_prefix(part.size());
      position += part.size();
      alive = alive && withdraw(withdrawal);
    }
    alive = alive && driver_.deliver(rest, [&] { return pieces.next(); });
    std::string trace = driver_.trace() + (alive ? "" : " poisoned") +
                        (driver_.replies().wants_reconnect() ? " anew" : "");
    driver_.abandon();
    check(trace);
    return trace;
  }

 private:
  bool withdraw(const Withdrawal& withdrawal) {
    if (!withdrawal.expires) batches_[withdrawal.command].cancel();
    const bool can_drain = driver_.replies().release(withdrawal.expires ? kDeadline : 0);
    for (std::size_t index = 0; index < batches_.size(); ++index) {
      if (batches_[index].finished() && !released_[index])
        released_[index] = targets_[index].text();
    }
    return can_drain;
  }

  // What must hold at the end; adds the bytes that callers may use to the trace.
  void check(std::string& trace) {
    for (std::size_t index = 0; index < batches_.size(); ++index) {
      const Planned& command = scenario_.commands[index];
      require(targets_[index].intact(), "a byte beside a target was written", trace);
      if (released_[index]) {
        require(targets_[index].text() == *released_[index], "a settled target was written", trace);
      }
      if (command.kind == 'P') continue;
      require(batches_[index].finished(), "a command was never settled", trace);
      if (batches_[index].commands()[0].status != Status::kOk) continue;
      if (command.kind == 'F') {
        require(targets_[index].text() == payload_of(index, command.size), "wrong bytes", trace);
      }
      if (command.kind == 'G') trace += " " + targets_[index].text();
    }
    require(driver_.replies().in_flight() == 0, "abandon() left something in flight");
  }

  const Scenario& scenario_;
  std::deque<Batch> batches_;
  std::deque<GuardedTarget> targets_;
  std::vector<std::optional<std::string>> released_;  // targets as they were when given back
  ReplyDriver driver_{kDrainBytesMax, kTargetBytesMax + 64};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Scenario scenario = read(kvferry::fuzz::as_input(data, size));
  const std::string whole = Run(scenario).trace(kvferry::fuzz::Cutting::kWhole);
  for (const auto cutting : kvferry::fuzz::kCuttings) {
    const std::string other = Run(scenario).trace(cutting);
    require(other == whole, "the cut changes the outcomes", whole + "\n" + other);
  }
  return 0;
}
