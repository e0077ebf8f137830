#pragma once
// CredentialSource: user and password that somebody provides anew for each connection attempt, for
// services whose tokens expire. I/O threads ask and go on; the provider answers in its own time.
//
// Threads: request() and the getters from any; await_request() and provide() from the provider's.
// Failure: an Error that is provided reaches every attempt that waits; live connections go on.
// Credentials that are too long to be sent become such an Error.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "base/bytes.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace kvferry::redis {

// What servers take of each word before they know the client; all of them fit into one greeting.
inline constexpr std::size_t kCredentialBytesMax = 16 * kKiB;
// Fails with: kAuth, which says how long `word` is, and what `name` may have.
Outcome check_credential(std::string_view name, std::string_view word);

// Secrets: never in a message.
struct Credentials {
  std::string username;
  std::string password;
  std::uint64_t version = 0;  // set by the source
};

class CredentialSource {
 public:
  using Callback = std::function<void(const Result<Credentials>&)>;
  static constexpr std::size_t kWaitingMax = 4096;

  // Asks for credentials; `callback` runs on the provider's thread; never after close(), or when
  // kWaitingMax others have asked since and nobody answered.
  void request(Callback callback);

  // Waits until somebody asks, `until` passes, or the source is closed; with 0 it only looks. True:
  // somebody waits.
  bool await_request(Nanos until);
  // Answers everybody who waits. Good credentials also reach connections that are up already.
  void provide(const Result<Credentials>& credentials);

  // Counts what was provided; a connection that has an older version authenticates again.
  [[nodiscard]] std::uint64_t version() const noexcept {
    return version_.load(std::memory_order_acquire);
  }
  [[nodiscard]] Credentials current() const;

  [[nodiscard]] bool closed() const;
  // Forgets who waits; no callback runs after this returned.
  void close();

 private:
  mutable std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<Callback> waiting_;
  Credentials current_;
  bool closed_ = false;
  std::atomic<std::uint64_t> version_{0};
};

}  // namespace kvferry::redis
