#include "sim/simulation.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "sim/caller.hpp"
#include "sim/troubles.hpp"

namespace kvferry::sim {
namespace {

constexpr std::uint64_t kStepsMax = 400'000;
constexpr std::uint64_t kStepsPerCheck = 16;
// From the end of all trouble: a stall, a refusal by name, a dial, and the longest wait before it.
constexpr Nanos kRecoveryMax = 15 * kSecond;
constexpr Nanos kRetryAfter = 50 * kMilli;
constexpr Nanos kQuiet = 10 * kMilli;  // until what travels has arrived

class Simulation {
 public:
  Simulation(std::uint64_t seed, const Options& options, Buffers& buffers)
      : random_(seed),
        plan_(draw_plan(random_)),
        journal_(options.print, kEpoch + random_.between(0, kSecond)),
        stream_context_{journal_, random_, buffers, plan_, options.plant},
        ledger_(journal_, buffers),
        node_context_{journal_, random_, ledger_, plan_, options.plant},
        cluster_(node_context_),
        network_(stream_context_, [this](std::size_t node) { return cluster_.welcome(node); }),
        client_(stream_context_, ledger_, cluster_, network_, std::move(*EventFd::open())),
        caller_(stream_context_, ledger_, client_),
        troubles_(stream_context_, cluster_, network_) {}

  Verdict run() {
    try {
      storm();
    } catch (const CheckFailed& failure) {
      journal_.fail(failure.what());
    }
    return {.fault = journal_.fault(),
            .digest = journal_.digest(),
            .steps = steps_,
            .commands = ledger_.commands()};
  }

 private:
  void storm() {
    // Whoever stands behind a value that is too large to be drained has to try again with it.
    if (plan_.drain_bytes_max < plan_.value_bytes_max) journal_.trouble("little is drained");
    if (plan_.closes_early) {
      const Nanos close_at = journal_.now() + random_.between(0, 20'000) * kMicro;
      run_while([&] { return journal_.now() < close_at && !caller_.done(); }, close_at);
    } else {
      run_while([&] { return !caller_.done() || !troubles_.done(); }, kNever);
      recover();
    }
    if (!journal_.failed()) {
      client_.close();
      client_.check_closed();
    }
  }

  // `until`: a moment at which the clock stops even if nothing is due.
  template <typename Condition>
  void run_while(Condition condition, Nanos until) {
    while (!journal_.failed() && condition()) {
      if (++steps_ > kStepsMax) return journal_.fail("the schedule has no end");
      if (step()) {
        journal_.advance(static_cast<Nanos>(random_.below(8)) * kMicro);
      } else if (!sleep(until)) {
        return journal_.fail("everybody waits and nothing is due");
      }
      if (steps_ % kStepsPerCheck == 0) ledger_.check_time();
    }
  }

  // Somebody takes a step. False: nobody can.
  bool step() {
    constexpr std::size_t kActors = 6;
    const std::size_t start = random_.below(kActors);
    for (std::size_t offset = 0; offset < kActors; ++offset) {
      if (act((start + offset) % kActors)) return true;
    }
    return false;
  }

  bool act(std::size_t actor) {
    switch (actor) {
      case 0:
        return caller_.step();
      case 1:
        return client_.step();
      case 2:
        return network_.step();
      case 3:
        return cluster_.serve(network_);
      case 4:
        return troubles_.step();
      default:
        return cluster_.converse();
    }
  }

  bool sleep(Nanos until) {
    const Nanos next = std::min({caller_.next(), client_.next(), network_.next(), cluster_.next(),
                                 troubles_.next(), until});
    if (next == kNever) return false;
    ledger_.check_time();
    if (next > journal_.now()) journal_.advance(next - journal_.now());
    return true;
  }

  // Writes and reads some keys until all of it succeeds once. Every node has some of them.
  void recover() {
    if (journal_.failed()) return;
    journal_.note("heal");
    troubles_.heal();
    const bool framed = random_.one_in(2);
    Caller::Keys keys;
    for (std::size_t region = 0; region < plan_.primaries; ++region) {
      std::size_t key = framed ? 1 : 0;
      while (key < kKeys && region_of(2 * key) != region) key += 2;
      if (key < kKeys) keys.push_back(key);
    }
    // Commands that were withdrawn after they were sent may still be done.
    const Nanos quiet_at = journal_.now() + kQuiet;
    run_while([&] { return journal_.now() < quiet_at; }, quiet_at);
    const Nanos give_up_at = journal_.now() + kRecoveryMax;
    while (!journal_.failed() && !round(keys, framed)) {
      if (journal_.now() > give_up_at) return journal_.fail("the client does not recover");
      const Nanos resume_at = journal_.now() + kRetryAfter;
      run_while([&] { return journal_.now() < resume_at; }, resume_at);
    }
  }

  bool round(const Caller::Keys& keys, bool framed) {
    if (!ask(Verb::kSet, keys, framed)) return false;
    cluster_.replicate_all();
    return ask(Verb::kGet, keys, framed);
  }

  // True: every command was OK.
  bool ask(Verb verb, const Caller::Keys& keys, bool framed) {
    const auto batch = caller_.ask(verb, keys, framed);
    if (batch == nullptr) return true;  // no memory left; nothing to be learnt
    run_while([&] { return !batch->finished(); }, kNever);
    bool all_ok = true;
    for (const redis::Command& command : batch->commands()) {
      all_ok = all_ok && command.status == Status::kOk;
      // What the server says of itself is the truth by now.
      if (command.status == Status::kMiss && !journal_.failed()) {
        journal_.fail("a value that was stored in times of peace is missed");
      }
    }
    return all_ok;
  }

  Random random_;
  const Plan plan_;
  Journal journal_;
  const StreamContext stream_context_;
  Ledger ledger_;
  const NodeContext node_context_;
  Cluster cluster_;
  Network network_;
  SimClient client_;
  Caller caller_;
  Troubles troubles_;
  std::uint64_t steps_ = 0;
};

}  // namespace

Verdict simulate(std::uint64_t seed, const Options& options) {
  thread_local Buffers buffers;  // as large as it ever was, because clearing memory takes time
  Random peek(seed);
  buffers.clear(draw_plan(peek).striped ? 64 * kMiB : 4 * kMiB);
  return Simulation(seed, options, buffers).run();
}

}  // namespace kvferry::sim
