#pragma once
// Job: one request of the caller for many keys of a store, and its outcome.
//
// A job owns its key bytes; payload memory belongs to the caller, who keeps it valid until the job
// is finished: then no thread and no kernel call can touch it any more. What a GET reads may also
// go into memory that `source` names when it comes. Keys come as the caller knows them; the store
// puts the prefix of its space before them.
//
// Threads: built by one thread, then worked on by those of a driver. Each key is completed exactly
// once, by any thread; whoever completes the last one finishes the job. What complete() published
// is seen by progress() (release/acquire on each status) and after finished().

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/request_state.hpp"
#include "mem/buffer_source.hpp"

namespace kvferry::connector {

class Job : public RequestState {
 public:
  struct Options {
    Verb verb = Verb::kGet;
    Nanos deadline = kNever;
    std::int64_t ttl_ms = 0;  // SET: 0 = no expiry
    bool prefix = false;      // stop asking after the first key that is not OK
  };

  explicit Job(const Options& options) : options_(options) {}

  // --- Building: before submission, one thread. ---
  void reserve(std::size_t keys, std::size_t key_bytes);
  // GET and SET name the buffer; the other verbs leave it empty.
  void add(std::string_view key, MutableBytes buffer);
  void set_deadline(Nanos deadline) noexcept { options_.deadline = deadline; }

  // --- While it runs. ---
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] std::size_t size() const noexcept { return items_.size(); }
  [[nodiscard]] std::string_view key(std::size_t index) const noexcept;
  [[nodiscard]] MutableBytes buffer(std::size_t index) const noexcept {
    return items_[index].buffer;
  }

  // Why a key need not be begun: the job was cancelled, its prefix ended before, or it is late.
  // kPending: it is to be done.
  [[nodiscard]] Status withdrawn(std::size_t index, Nanos now) const noexcept;

  // The outcome of one key; `size` is the length of its value where that is known. The first `why`
  // is kept. Returns true for the last key: then the caller must see that the job finishes.
  [[nodiscard]] bool complete(std::size_t index, Status status, std::uint64_t size = 0,
                              Reason why = {});

  // How many leading keys are OK by now; their buffers are final.
  [[nodiscard]] std::size_t progress() const noexcept;

  // --- Afterwards: requires finished(). ---
  [[nodiscard]] Status status(std::size_t index) const noexcept { return items_[index].status; }
  [[nodiscard]] std::uint64_t value_size(std::size_t index) const noexcept {
    return items_[index].value_size;
  }
  void results(std::uint8_t* statuses, std::uint64_t* sizes) const noexcept;
  [[nodiscard]] Nanos elapsed() const noexcept { return unasked ? 0 : RequestState::elapsed(); }

  // GET: where values go, by index; their buffers have a length and no memory. Shared with
  // whoever submitted the job. Only drivers that say so take it.
  std::shared_ptr<mem::BufferSource> source;
  bool unasked = false;  // set by the driver: it was answered without asking the store

 private:
  struct Item {
    MutableBytes buffer;
    std::uint64_t value_size = 0;
    std::uint32_t key_offset = 0;
    std::uint16_t key_length = 0;
    Status status = Status::kPending;  // written through atomic_ref while the job runs
  };

  Options options_;
  std::string keys_;
  std::vector<Item> items_;
  std::atomic<std::size_t> unsettled_{0};
};

}  // namespace kvferry::connector
