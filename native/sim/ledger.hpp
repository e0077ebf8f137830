#pragma once
// Ledger: what callers asked, what servers did, and whether the answers follow from it.
//
// Every command that a server executes is an execution. A command that settles OK or MISS must
// have one of its own, between its submission and the end of its batch, with that very result: it
// claims it, so that one execution never explains two answers. Failures need a reason as well.
//
// Lifetime: batches stay here until clear(), so that what touches them late is seen.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "redis/batch.hpp"
#include "sim/buffers.hpp"
#include "sim/journal.hpp"
#include "sim/keys.hpp"
#include "sim/stamp.hpp"

namespace kvferry::sim {

enum class Deed : std::uint8_t {
  kHit,      // GET: a value of `size` bytes
  kDamaged,  // GET: a framed value that was damaged in the store
  kAbsent,   // GET
  kStored,   // SET
  kYes,      // EXISTS, TOUCH, DEL
  kNo,
  kRefused,  // the server will not: OOM
  kBusy,     // the server cannot now: LOADING, CLUSTERDOWN, READONLY, ...
};

struct Execution {
  Verb verb;
  std::uint8_t entry;
  Deed deed;
  std::uint16_t version = 0;
  std::uint64_t size = 0;  // of the payload
  bool claimed = false;
};

// One item of a request.
struct Use {
  std::uint8_t key = 0;
  std::uint16_t version = 0;  // SET
  MutableBytes buffer;
  std::uint8_t stripe = 0;  // of the value that is meant, where it is not the whole
};

struct Request {
  std::shared_ptr<redis::Batch> batch;
  std::vector<Use> uses;
  Nanos submitted_at = 0;
  Nanos cancel_at = kNever;  // when the caller means to
  Nanos cancelled_at = kNever;
  std::size_t first_execution = 0;
  bool done = false;
  bool generous = false;  // its deadline is out of reach in times of peace
  std::vector<Status> outcome;
};

class Ledger {
 public:
  Ledger(Journal& journal, Buffers& buffers) : journal_(journal), buffers_(buffers) {}

  void executed(const Execution& execution) {
    journal_.note("executed", execution.entry * 16 + static_cast<int>(execution.verb),
                  static_cast<int>(execution.deed) * 65536 + execution.version);
    executions_.push_back(execution);
  }

  // A batch is about to be submitted. The reference is valid until the next call.
  Request& open(std::shared_ptr<redis::Batch> batch, std::vector<Use> uses);
  // It was refused: as if it had never been.
  void refused();
  void cancelled(Request& request) noexcept;
  // The last command of the batch settled.
  void finished(redis::Batch& batch);
  // The client was told to close: whatever is open may be cancelled.
  void closing() noexcept { closing_ = true; }

  // Nothing is open past its time.
  void check_time();
  // Nothing has changed since it was settled, and every command settled once.
  void check_end(std::uint64_t settled, bool all_counted);

  [[nodiscard]] std::vector<Request>& requests() noexcept { return requests_; }
  // Owner of the buffers of the request that is opened next.
  [[nodiscard]] std::uint32_t next_owner() const noexcept {
    return static_cast<std::uint32_t>(requests_.size());
  }
  [[nodiscard]] std::size_t open_count() const noexcept { return open_; }
  [[nodiscard]] std::uint64_t commands() const noexcept { return commands_; }

 private:
  void check(Request& request);
  void check_command(const Request& request, redis::Command& command);
  void check_read(const Request& request, const redis::Command& command);
  // The first execution that explains the outcome and explains no other.
  bool claim(const Request& request, const Execution& wanted, bool any_version, bool any_entry);
  void fail(const Request& request, const redis::Command& command, const std::string& rule);

  Journal& journal_;
  Buffers& buffers_;
  std::vector<Execution> executions_;
  std::vector<Request> requests_;
  std::size_t open_ = 0;
  std::uint64_t commands_ = 0;
  bool closing_ = false;
};

}  // namespace kvferry::sim
