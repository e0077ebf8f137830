#pragma once
// The redis driver: framed batches of a redis::Client, striped and without a copy of the payload.
//
// What it stores is what a CacheNamespace with the same prefix and identity stores, see
// docs/formats/frame.md; encoded, where it is told so and that pays. A value of another length is
// of no use here: it is deleted like a corrupt one. Usage, scan and descriptions are for a control
// connection, not for this one.
//
// With a presence view, keys that it knows to be absent are MISS without being asked for, where
// they are read, touched, or looked for as a prefix. EXISTS of single keys is the server's word.
//
// Threads: jobs finish in the client's threads, or in the caller's when nobody need be asked.
// Lifetime: the client belongs to others, who may close it: then jobs are CANCELLED, and from then
// on submissions fail with kClosed. It is never owned here, because a thread of its own that
// finishes a job would have to end it.

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "connector/connector.hpp"
#include "redis/client.hpp"

namespace kvferry::connector {

class RedisConnector final : public Connector {
 public:
  // `presence`: the view to keep; its prefix is that of the space. `owns`: a value that is of no
  // use is deleted; else it is for another to do so. Fails with: kSystem.
  static Result<std::shared_ptr<Connector>> open(
      Space space, const std::shared_ptr<redis::Client>& client,
      std::optional<redis::PresenceOptions> presence = std::nullopt, bool owns = true);

  RedisConnector(Space space, EventFd event, std::weak_ptr<redis::Client> client,
                 const redis::PresenceView* view, bool owns);

  [[nodiscard]] std::size_t progress(const Job& job) const override;
  [[nodiscard]] bool available() const override;
  void write_as(codec::Codec codec) noexcept override {
    codec_.store(codec, std::memory_order_relaxed);
  }
  [[nodiscard]] bool pages_on_demand() const override { return true; }
  [[nodiscard]] bool absent(std::string_view key) const override;
  [[nodiscard]] std::optional<std::size_t> leading(
      std::span<const std::string_view> keys) const override;
  // What its view knows, and what is in its way; nothing: it keeps none.
  struct View {
    redis::PresenceStats stats;
    std::string why;
  };
  [[nodiscard]] std::optional<View> view() const;

 private:
  class Exchange;

  // Which keys of a job are to be asked for.
  struct Asked {
    std::vector<std::uint32_t> indexes;  // in the job; used unless all are
    std::size_t leading = 0;             // keys before the first that is absent
    bool all = true;

    [[nodiscard]] std::size_t index(std::size_t item) const { return all ? item : indexes[item]; }
  };

  Outcome start(const std::shared_ptr<Job>& job) override;
  [[nodiscard]] Asked choose(const Job& job, const std::vector<std::string>& names) const;
  Outcome ask(redis::Client& client, const std::shared_ptr<Job>& job,
              const std::vector<std::string>& names, Asked asked);
  void settle_absent(Job& job, const Asked& asked);
  void withdraw(Job& job) override;
  void stop(Nanos until) override;
  void ended(redis::BatchTaker& client, Job& job, const Asked& asked, const redis::Batch& batch);
  void conclude(Job& job);
  void delete_misfits(redis::BatchTaker& client, const Job& job, const Asked& asked);

  const std::uint64_t identity_;
  const std::weak_ptr<redis::Client> client_;
  const redis::PresenceView* const view_;  // of the client
  std::atomic<codec::Codec> codec_{codec::Codec::kRaw};
  const bool owns_;
  mutable std::mutex mutex_;
  std::condition_variable none_left_;
  struct Running {
    std::shared_ptr<redis::Batch> batch;  // shared with the client until it is finished
    std::uint64_t id = 0;                 // of the batch; 0 while it is being submitted
    std::size_t leading = 0;              // keys of the job that are the batch's first
  };
  std::unordered_map<std::uint64_t, Running> batches_;  // by the id of the job
};

}  // namespace kvferry::connector
