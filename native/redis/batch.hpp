#pragma once
// Batch: one request of the caller for many keys, and its outcome.
//
// What can never be sent (a key of no or too many bytes, a value of too many stripes, nothing at
// all) is noted when it is added, and the client refuses the batch.
// A batch owns its key bytes; payload memory belongs to the caller, who keeps it valid until the
// batch is finished (finished = no thread and no kernel call can still touch it). What a GET of
// framed values reads may also go into memory that `source` names when it comes.
// Each key is one item. An item is one command on the wire, or several when its value is striped.
// A kCall is any command, with a key that says which node of a cluster it is for, and has its
// reply.
//
// Threads: built by one thread, then pulled apart by workers. A worker settles each command exactly
// once; the last settle() publishes every result (release/acquire on `unsettled_`).

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/clock.hpp"
#include "base/request_state.hpp"
#include "base/result.hpp"
#include "codec/frame.hpp"
#include "mem/buffer_source.hpp"
#include "resp/value.hpp"

namespace kvferry::redis {

// One command on the wire.
struct Command {
  std::byte* data = nullptr;     // GET: where the payload lands; SET: where it comes from
  std::size_t size = 0;          // bytes of payload
  std::uint64_t sent_at = 0;     // it is sent when its outbox's sent_total() has reached this
  std::uint64_t found = 0;       // bytes of payload the server has
  std::uint64_t checksum = 0;    // framed: XXH3-64 of the payload
  std::uint64_t generation = 0;  // framed: which write of the whole value this stripe belongs to
  std::uint32_t key_offset = 0;
  std::uint16_t key_length = 0;
  std::uint16_t stripe = 0;  // index of this stripe; 0 when the value is whole
  std::uint32_t item = 0;    // index of the key in the batch
  std::uint8_t attempts = 0;
  std::uint8_t redirects = 0;  // how often a cluster has sent it elsewhere
  bool asking = false;         // goes to a node that is importing its slot: ASKING comes first
  bool primary_only = false;   // a replica could not answer it
  bool deferred = false;       // SET of stripe 0: waits until every other stripe is stored
  bool stamped = false;        // framed SET: checksum and generation are set
  codec::FrameFault fault = codec::FrameFault::kNone;  // framed GET: why it is not OK
  Status status = Status::kPending;
};

class Batch;

// Takes batches: the client, as a listener sees it.
class BatchTaker {
 public:
  // The batch's id. Fails with: see Client.
  virtual Result<std::uint64_t> submit(const std::shared_ptr<Batch>& batch) = 0;
  // The deadline of a batch of `payload_bytes` that is submitted now.
  [[nodiscard]] virtual Nanos deadline_for(std::size_t payload_bytes) const noexcept = 0;

 protected:
  ~BatchTaker() = default;
};

// Hears of what happens to a batch: in a thread of the client, which must not be kept and cannot
// end the client.
class BatchListener {
 public:
  virtual ~BatchListener() = default;
  // The framed value of `command` cannot be trusted; unless the batch `keeps`, it is being deleted.
  virtual void corrupt(const Batch& batch, const Command& command) = 0;
  // The batch is finished; it is not announced on the event fd. Others may be submitted.
  virtual void finished(BatchTaker& client, const std::shared_ptr<Batch>& batch) = 0;
};

class Batch : public RequestState {
 public:
  struct Options {
    Verb verb = Verb::kGet;
    Nanos deadline = kNever;
    std::int64_t ttl_ms = 0;     // SET: 0 = no expiry
    bool prefix = false;         // stop asking after the first key that is not OK
    bool framed = false;         // values carry the header of codec/frame.hpp and may be striped
    std::uint64_t identity = 0;  // framed: what the bytes must be comparable with
    codec::Codec codec = codec::Codec::kRaw;  // framed SET: how values are sent where that pays
    bool keeps = false;  // framed: what cannot be trusted is another's, and is not deleted
  };

  // 512 of the caller, and the number of a stripe.
  static constexpr std::size_t kKeyBytesMax = 512 + 6;
  static constexpr std::size_t kCallBytesMax = kMiB;

  explicit Batch(const Options& options) : options_(options) {}

  // --- Building: before submission, one thread. ---
  void reserve(std::size_t items, std::size_t key_bytes);
  // Plain GET/SET name the buffer; the other verbs leave it empty.
  void add(std::string_view key, MutableBytes buffer);
  // kCall: `request` is the command as it goes over the wire.
  void add_call(std::string_view key, std::string request);
  void set_deadline(Nanos deadline) noexcept { options_.deadline = deadline; }
  // Why it cannot be sent; empty: it can.
  [[nodiscard]] std::string refusal() const;

  // --- While it runs. ---
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] std::string_view key(const Command& command) const noexcept {
    return std::string_view(keys_).substr(command.key_offset, command.key_length);
  }
  [[nodiscard]] std::vector<Command>& commands() noexcept { return commands_; }
  // How many commands may be sent at once; the others are deferred.
  [[nodiscard]] std::size_t sendable() const noexcept { return commands_.size() - deferred_count_; }
  [[nodiscard]] std::string_view request(const Command& command) const noexcept {
    return calls_[command.item].request;
  }
  [[nodiscard]] resp::Value& reply(const Command& command) noexcept {
    return calls_[command.item].reply;
  }
  // All commands of the item that `command` belongs to; stripe 0 is the last of them.
  [[nodiscard]] std::span<Command> stripes(const Command& command) noexcept;
  // Bytes of the whole value, all stripes together.
  [[nodiscard]] std::size_t value_size(const Command& command) const noexcept {
    return items_[command.item].size;
  }
  // Guards the stamping of the value that `command` belongs to: its stripes may be encoded by
  // several workers. Other values are hashed meanwhile.
  [[nodiscard]] std::mutex& stamp_mutex(const Command& command) noexcept {
    return stamp_mutexes_[command.item % stamp_mutexes_.size()];
  }
  // A sound value is about to come: sets where it lands. False: nobody wants it.
  [[nodiscard]] bool assign_buffer(Command& command) const;
  // Whether a command need not be sent: the batch was cancelled, its prefix ended before it, or
  // nobody wants what it brings.
  [[nodiscard]] Status withdrawn(const Command& command) const noexcept;

  // The outcome of one command. `why` is kept if it is the batch's first. Returns true for the
  // last command: then the caller must hand the batch to its completion.
  [[nodiscard]] bool settle(Command& command, Status status, Reason why = {});

  // Stripe 0 of a striped SET is sent when all others are stored. After settle() of one of those:
  // the command that may now go (or must fail, as `status` says), if this was the last.
  [[nodiscard]] Command* released_by(const Command& command, Status& status) noexcept;

  // How many leading items are OK by now; their buffers are final.
  [[nodiscard]] std::size_t progress() const noexcept;

  // --- Afterwards. ---
  [[nodiscard]] std::size_t item_count() const noexcept { return items_.size(); }
  // One status per key and the size of each value; requires finished().
  void results(std::uint8_t* statuses, std::uint64_t* sizes) const;
  [[nodiscard]] std::size_t payload_bytes() const noexcept { return payload_bytes_; }

  // The one node of a cluster that its commands are for, as "host:port"; empty: by their keys.
  std::string node;
  // Instead of the event fd; shared with whoever submitted the batch. Null: there is none.
  std::shared_ptr<BatchListener> listener;
  // GET, framed: where values land that were added without memory; shared with whoever submitted.
  std::shared_ptr<mem::BufferSource> source;

 private:
  struct Item {
    std::uint32_t first;  // index of its first command
    std::uint16_t stripes;
    std::uint16_t unstored;  // SET: stripes before stripe 0 that are not settled; atomic_ref
    std::size_t size;
  };
  struct Call {
    std::string request;
    resp::Value reply;
  };
  [[nodiscard]] Status combine(const Item& item, std::uint64_t& size) const noexcept;

  Options options_;
  std::string refusal_;
  std::string keys_;
  std::vector<Command> commands_;
  std::vector<Item> items_;
  std::vector<Call> calls_;  // by item; of kCall alone
  std::size_t payload_bytes_ = 0;
  std::size_t deferred_count_ = 0;
  std::atomic<std::size_t> unsettled_{0};
  std::array<std::mutex, 8> stamp_mutexes_;  // neighbours have different ones
};

}  // namespace kvferry::redis
