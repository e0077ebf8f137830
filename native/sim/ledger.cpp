#include "sim/ledger.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::sim {
namespace {

// What a client may take: sweeping the queues every 10 ms, and the steps of the schedule.
constexpr Nanos kLateMax = 25 * kMilli;
// More than a client in times of peace ever needs.
constexpr Nanos kGenerous = 4 * kSecond;

std::uint8_t entry_in(const Request& request, const redis::Command& command) noexcept {
  const Use& use = request.uses[command.item];
  return static_cast<std::uint8_t>(use.key * 2 + use.stripe + command.stripe);
}

}  // namespace

Request& Ledger::open(std::shared_ptr<redis::Batch> batch, std::vector<Use> uses) {
  commands_ += batch->commands().size();
  ++open_;
  Request& request = requests_.emplace_back();
  request.batch = std::move(batch);
  request.uses = std::move(uses);
  request.submitted_at = journal_.now();
  request.generous = request.batch->options().deadline - journal_.now() >= kGenerous;
  request.first_execution = executions_.size();
  return request;
}

void Ledger::refused() {
  commands_ -= requests_.back().batch->commands().size();
  --open_;
  requests_.pop_back();
}

void Ledger::cancelled(Request& request) noexcept {
  request.cancel_at = kNever;
  request.cancelled_at = journal_.now();
}

void Ledger::finished(redis::Batch& batch) {
  const auto request =
      std::ranges::find(requests_, &batch, [](const Request& each) { return each.batch.get(); });
  if (request == requests_.end()) return journal_.fail("a batch that nobody knows has finished");
  if (std::exchange(request->done, true)) return journal_.fail("a batch has finished twice");
  --open_;
  journal_.note("finished", static_cast<std::int64_t>(batch.id));
  check(*request);
  buffers_.retire(static_cast<std::uint32_t>(request - requests_.begin()));
}

void Ledger::check(Request& request) {
  for (redis::Command& command : request.batch->commands()) {
    request.outcome.push_back(command.status);
    check_command(request, command);
  }
}

void Ledger::check_command(const Request& request, redis::Command& command) {
  const auto& options = request.batch->options();
  const std::uint8_t entry = entry_in(request, command);
  const bool reads = options.verb == Verb::kGet;
  switch (command.status) {
    case Status::kOk:
      if (reads) return check_read(request, command);
      if (options.verb == Verb::kSet) {
        const std::uint16_t version = request.uses[command.item].version;
        if (!claim(request, {options.verb, entry, Deed::kStored, version, command.size}, false,
                   false)) {
          fail(request, command, "OK, and no server stored those bytes");
        }
      } else if (!claim(request, {options.verb, entry, Deed::kYes}, true,
                        options.verb == Verb::kPing)) {
        fail(request, command, "OK, and no server said so");
      }
      return;
    case Status::kMiss:
      if (!claim(request, {options.verb, entry, reads ? Deed::kAbsent : Deed::kNo}, true, false)) {
        fail(request, command, "MISS, and no server said so");
      }
      return;
    case Status::kSizeMismatch:
      if (command.found == command.size) fail(request, command, "a mismatch of equal sizes");
      // What was damaged is not looked at when the length is wrong.
      if (!reads ||
          (!claim(request, {options.verb, entry, Deed::kHit, 0, command.found}, true, false) &&
           !claim(request, {options.verb, entry, Deed::kDamaged, 0, command.found}, true, false))) {
        fail(request, command, "SIZE_MISMATCH, and no server had such a value");
      }
      return;
    case Status::kCorrupt:
      if (!claim(request, {options.verb, entry, Deed::kDamaged}, true, false)) {
        fail(request, command, "CORRUPT, and nothing was damaged");
      }
      return;
    case Status::kTimeout:
      if (journal_.now() < options.deadline) fail(request, command, "TIMEOUT before the deadline");
      if (!journal_.troubled() && request.generous) {
        fail(request, command, "TIMEOUT in times of peace");
      }
      return;
    case Status::kUnavailable:
      if (!journal_.troubled() && !claim(request, {options.verb, entry, Deed::kBusy}, true, true)) {
        fail(request, command, "UNAVAILABLE in times of peace");
      }
      return;
    case Status::kServerError:
      if (!claim(request, {options.verb, entry, Deed::kRefused}, true, true)) {
        fail(request, command, "SERVER_ERROR, and no server refused anything");
      }
      return;
    case Status::kCancelled:
      if (request.cancelled_at == kNever && !closing_ && !options.prefix) {
        fail(request, command, "CANCELLED, and nobody cancelled");
      }
      return;
    case Status::kPending:
      fail(request, command, "the batch is finished and this command is not");
  }
}

void Ledger::check_read(const Request& request, const redis::Command& command) {
  const std::uint8_t entry = entry_in(request, command);
  const Use& use = request.uses[command.item];
  const ByteView bytes(command.data, command.size);
  const Execution wanted{Verb::kGet, entry, Deed::kHit, 0, command.size};
  if (bytes.size() < 8) {
    if (!claim(request, wanted, true, false)) fail(request, command, "OK, and nobody said so");
    return;
  }
  const auto offset = static_cast<std::size_t>(bytes.data() - use.buffer.data());
  const Stamp stamp = stamp_of(bytes);
  if (stamp.key != use.key || !carries(bytes, stamp, offset)) {
    return fail(request, command, "bytes that were never written for this key");
  }
  Execution read = wanted;
  read.version = stamp.version;
  if (!claim(request, read, false, false)) {
    fail(request, command,
         "version " + std::to_string(stamp.version) + ", which no server answered in that time");
  }
}

bool Ledger::claim(const Request& request, const Execution& wanted, bool any_version,
                   bool any_entry) {
  for (std::size_t index = request.first_execution; index < executions_.size(); ++index) {
    Execution& each = executions_[index];
    if (each.claimed || each.verb != wanted.verb || each.deed != wanted.deed) continue;
    if (!any_entry && each.entry != wanted.entry) continue;
    if (!any_version && each.version != wanted.version) continue;
    if (wanted.size != 0 && each.size != wanted.size) continue;
    // A busy or refused first stripe fails the others too, so those stay for more than one.
    each.claimed = !any_entry;
    return true;
  }
  return false;
}

void Ledger::check_time() {
  if (open_ == 0) return;
  for (const Request& request : requests_) {
    if (request.done) continue;
    const Nanos due = std::min(std::max(request.batch->options().deadline, request.submitted_at),
                               request.cancelled_at);
    if (journal_.now() > add_time(due, kLateMax)) {
      const bool cancelled = request.cancelled_at != kNever;
      journal_.fail("batch " + std::to_string(request.batch->id) + " is not finished " +
                    std::to_string((journal_.now() - due) / kMilli) + " ms after " +
                    (cancelled ? "it was cancelled" : "its deadline"));
    }
  }
}

void Ledger::check_end(std::uint64_t settled, bool all_counted) {
  for (const Request& request : requests_) {
    if (!request.done) {
      journal_.fail("batch " + std::to_string(request.batch->id) + " never finished");
      continue;
    }
    const auto& commands = request.batch->commands();
    for (std::size_t index = 0; index < commands.size(); ++index) {
      if (commands[index].status != request.outcome[index]) {
        fail(request, commands[index], "it changed its outcome after the batch was finished");
      }
    }
  }
  if (settled > commands_ || (all_counted && settled != commands_)) {
    journal_.fail(std::to_string(commands_) + " commands settled " + std::to_string(settled) +
                  " times");
  }
  if (!buffers_.intact()) journal_.fail("memory of a finished batch, or none's, was written to");
}

void Ledger::fail(const Request& request, const redis::Command& command, const std::string& rule) {
  journal_.fail("batch " + std::to_string(request.batch->id) + ", verb " +
                std::to_string(static_cast<int>(request.batch->options().verb)) + ", key " +
                std::string(request.batch->key(command)) + ": " + rule + " (" +
                std::string(request.batch->error().text) + ")");
}

}  // namespace kvferry::sim
