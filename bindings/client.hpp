#pragma once
// PyClient: the client as Python has it; others that need its connections take client().

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "batches.hpp"
#include "credentials.hpp"
#include "redis/client.hpp"

namespace kvferry {

class PyClient {
 public:
  PyClient(const nanobind::dict& settings, const PyCredentials* credentials);
  PyClient(const PyClient&) = delete;
  PyClient& operator=(const PyClient&) = delete;
  ~PyClient();

  std::uint64_t submit(int verb, nanobind::handle keys, nanobind::handle buffers, double timeout_s,
                       std::int64_t ttl_ms, bool prefix, nanobind::handle identity,
                       std::size_t value_size_bytes, int codec);
  nanobind::tuple run(int verb, nanobind::handle keys, nanobind::handle buffers, double timeout_s,
                      std::int64_t ttl_ms, bool prefix, nanobind::handle identity,
                      std::size_t value_size_bytes, int codec);
  // Any commands, one reply each: those of `node`, or of whoever has `key`.
  nanobind::tuple call(nanobind::handle commands, const nanobind::bytes& key,
                       const std::string& node, double timeout_s);
  nanobind::list drain();
  nanobind::list drain_log();
  void cancel(std::uint64_t id) { client_->cancel(id); }
  void close();
  // Keeps a view from now on; see redis::PresenceOptions.
  void watch(const std::string& prefix, const std::string& seat, std::size_t keys_max,
             std::uint64_t load_max, bool optional);
  void forked_away() noexcept { client_->forked_away(); }

  [[nodiscard]] int event_fd() const { return client_->event_fd(); }
  [[nodiscard]] bool available() const { return client_->router().available(); }
  [[nodiscard]] nanobind::object down_reason() const;
  [[nodiscard]] nanobind::list presence(nanobind::handle keys) const;
  [[nodiscard]] nanobind::dict presence_stats() const;
  nanobind::dict stats();
  nanobind::list nodes();
  [[nodiscard]] std::vector<std::string> primaries() const { return client_->router().primaries(); }

  [[nodiscard]] const std::shared_ptr<redis::Client>& client() const noexcept { return client_; }

 private:
  // Submits it and waits without the GIL.
  void finish(const std::shared_ptr<redis::Batch>& batch);
  [[nodiscard]] Nanos deadline(double timeout_s, std::size_t payload_bytes) const;
  std::shared_ptr<redis::Batch> build(int verb, nanobind::handle keys, nanobind::handle buffers,
                                      double timeout_s, std::int64_t ttl_ms, bool prefix,
                                      nanobind::handle identity, std::size_t value_size_bytes,
                                      int codec, std::unique_ptr<Lease>& lease);

  const std::shared_ptr<LogSink> tls_log_ = std::make_shared<LogSink>();
  std::shared_ptr<redis::Client> client_;  // shared with the connectors that use it
  LeaseBook leases_;
};

}  // namespace kvferry
