#pragma once
// ClientCore: a client without its threads: the batches that run, the router that spreads them, the
// workers that are told, and who hears of the end. Client runs it on threads; so does the
// simulation, on one and a clock of its own.
//
// Threads: every method from any, but add(), which comes before the workers begin.
// Failure: a submission fails with an Error or is finished exactly once, closed client included.

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/log_sink.hpp"
#include "redis/batch.hpp"
#include "redis/completions.hpp"
#include "redis/config.hpp"
#include "redis/router.hpp"
#include "redis/worker.hpp"

namespace kvferry::redis {

class ClientCore : public BatchTaker, protected Dispatcher {
 public:
  ClientCore(const ClientCore&) = delete;
  ClientCore& operator=(const ClientCore&) = delete;

  // Hands a batch over and names it. With `batch->quiet` the caller wait()s for it; otherwise it
  // comes back through drain(). While the server is down it finishes at once.
  // Fails with: kClosed, kCapacity, kInvalidArgument (see Batch::refusal()).
  Result<std::uint64_t> submit(const std::shared_ptr<Batch>& batch) override;

  // Readable while finished batches wait for drain(), which is called by one thread at a time.
  [[nodiscard]] int event_fd() const noexcept { return completions_.fd(); }
  std::vector<std::shared_ptr<Batch>> drain() { return completions_.drain(); }

  [[nodiscard]] Nanos deadline_for(std::size_t payload_bytes) const noexcept override;

  [[nodiscard]] const Config& config() const noexcept { return config_; }
  [[nodiscard]] Router& router() noexcept { return router_; }
  [[nodiscard]] LogSink& log() noexcept { return log_; }
  [[nodiscard]] std::size_t running() const;
  // How often its workers have looked at a connection.
  [[nodiscard]] std::uint64_t visits() const noexcept;

 protected:
  // `event`: of the completions.
  ClientCore(Config config, EventFd event);
  ~ClientCore() = default;

  [[nodiscard]] virtual Nanos now() const noexcept = 0;
  // Every command of the batch has settled, and nobody was told yet.
  virtual void finishing(Batch&) {}

  // Outlives every call that could wake it.
  void add(Worker& worker) { workers_.push_back(&worker); }
  void cancel(std::uint64_t id);
  // Cancels everything, and no batch is taken from now on.
  void begin_close();
  // What waits is refused. Requires: the workers have shut down.
  void end_close();

  void finished(Batch& batch) override;
  void corrupt(Batch& batch, const Command& command) override;
  void wake_workers() override;
  void wake(std::size_t worker, const AskedNode& server) override;
  void route(Work work) override { router_.route(work); }
  void redirected(AskedNode& from, Work work, std::string_view answer) override;

 private:
  const Config config_;
  LogSink log_;
  Completions completions_;
  mutable std::mutex mutex_;  // guards what follows, up to closed_
  std::unordered_map<std::uint64_t, std::shared_ptr<Batch>> running_;
  std::uint64_t next_id_ = 1;
  bool closed_ = false;
  Router router_;
  std::vector<Worker*> workers_;
};

}  // namespace kvferry::redis
