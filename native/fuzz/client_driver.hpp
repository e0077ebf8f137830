#pragma once
// Batches for tests of a Client, and their outcome as words. No wait is without a limit.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "redis/client.hpp"

namespace kvferry::redis {

inline constexpr Nanos kPatience = 20 * kSecond;

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
  std::string text;
  for (const Command& command : batch.commands()) {
    text += (text.empty() ? "" : " ") + std::string(name(command.status));
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
