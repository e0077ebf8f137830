#pragma once
// A Client for tests, its batches, and their outcome as words. No wait is without a limit.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/test_names.hpp"
#include "redis/client.hpp"

namespace kvferry::redis {

inline constexpr Nanos kPatience = 10 * kSecond;

// Few connections to this port, and hardly a pause before they are dialled again.
inline Config client_config(std::uint16_t port) {
  Config config;
  config.endpoint = {"127.0.0.1", port, {}};
  config.connections = 2;
  config.reconnect_min = 2 * kMilli;
  config.reconnect_max = 20 * kMilli;
  return config;
}

inline std::unique_ptr<Client> open(const Config& config,
                                    std::shared_ptr<CredentialSource> credentials = nullptr) {
  auto client = Client::open(config, net::plain_transport(), std::move(credentials));
  EXPECT_TRUE(client);
  return std::move(*client);
}

// A batch that somebody waits for. `values`: the buffers of a GET or SET, one for each key.
inline std::shared_ptr<Batch> make_batch(Verb verb, const std::vector<std::string>& keys,
                                         std::vector<std::string>* values = nullptr,
                                         Nanos deadline = kNever) {
  auto batch = std::make_shared<Batch>(Batch::Options{.verb = verb, .deadline = deadline});
  for (std::size_t i = 0; i < keys.size(); ++i) {
    batch->add(keys[i], values == nullptr ? MutableBytes{}
                                          : std::as_writable_bytes(std::span((*values)[i])));
  }
  batch->quiet = true;
  return batch;
}

// "OK MISS", once it is finished.
inline std::string outcome(Batch& batch) {
  if (!batch.wait(monotonic_ns() + kPatience)) return "never finished";
  std::vector<std::uint8_t> statuses(batch.item_count());
  std::vector<std::uint64_t> sizes(batch.item_count());
  batch.results(statuses.data(), sizes.data());
  std::string text;
  for (const std::uint8_t status : statuses) {
    text += (text.empty() ? "" : " ") + std::string(name(static_cast<Status>(status)));
  }
  return text;
}

// The same of a batch that is submitted now; or why it was refused.
inline std::string run(Client& client, const std::shared_ptr<Batch>& batch) {
  const auto id = client.submit(batch);
  return id ? outcome(*batch) : std::string(name(id.error().code));
}

// Runs such batches until one ends with `wanted`; the last outcome.
inline std::string run_until(Client& client, Verb verb, const std::vector<std::string>& keys,
                             const std::string& wanted) {
  std::string last;
  for (const Nanos until = monotonic_ns() + kPatience; monotonic_ns() < until;) {
    last = run(client, make_batch(verb, keys));
    if (last == wanted) break;
  }
  return last;
}

}  // namespace kvferry::redis
