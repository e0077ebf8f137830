#pragma once
// The redis driver: framed batches of a redis::Client, striped and without a copy of the payload.
//
// What it stores is what a CacheNamespace with the same prefix and identity stores, see
// docs/formats/frame.md. A value of another length is of no use here: it is deleted like a corrupt
// one. Usage, scan and descriptions are for a control connection, not for this one.
//
// Threads: jobs finish in the client's threads.
// Lifetime: the client belongs to others, who may close it: then jobs are CANCELLED, and from then
// on submissions fail with kClosed. It is never owned here, because a thread of its own that
// finishes a job would have to end it.

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "connector/connector.hpp"
#include "redis/client.hpp"

namespace kvferry::connector {

class RedisConnector final : public Connector {
 public:
  // Fails with: kSystem.
  static Result<std::shared_ptr<Connector>> open(Space space,
                                                 const std::shared_ptr<redis::Client>& client);

  RedisConnector(Space space, EventFd event, std::weak_ptr<redis::Client> client);

  [[nodiscard]] std::size_t progress(const Job& job) const override;
  [[nodiscard]] Nanos deadline_for(std::size_t payload_bytes) const noexcept override;
  [[nodiscard]] bool available() const override;

 private:
  class Exchange;

  Outcome start(const std::shared_ptr<Job>& job) override;
  void withdraw(Job& job) override;
  void stop(Nanos until) override;
  void ended(redis::Client& client, Job& job, const redis::Batch& batch);
  void delete_misfits(redis::Client& client, const Job& job);

  const std::uint64_t identity_;
  const std::weak_ptr<redis::Client> client_;
  mutable std::mutex mutex_;
  std::condition_variable none_left_;
  struct Running {
    std::shared_ptr<redis::Batch> batch;  // shared with the client until it is finished
    std::uint64_t id = 0;                 // of the batch; 0 while it is being submitted
  };
  std::unordered_map<std::uint64_t, Running> batches_;  // by the id of the job
};

}  // namespace kvferry::connector
