#include "redis/credentials.hpp"

#include <chrono>
#include <utility>

namespace kvferry::redis {

Outcome check_credential(std::string_view name, std::string_view word) {
  if (word.size() <= kCredentialBytesMax) return Done{};
  return Error{Errc::kAuth, std::string(name) + " has " + std::to_string(word.size()) +
                                " bytes; servers take at most " +
                                std::to_string(kCredentialBytesMax)};
}

void CredentialSource::request(Callback callback) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  waiting_.push_back(std::move(callback));
  if (waiting_.size() > kWaitingMax) waiting_.pop_front();  // long given up
  asked_.notify_one();
}

bool CredentialSource::await_request(Nanos until) {
  std::unique_lock lock(mutex_);
  const auto awake = [this] { return closed_ || !waiting_.empty(); };
  const std::chrono::steady_clock::time_point moment{std::chrono::nanoseconds(until)};
  if (until > 0) asked_.wait_until(lock, moment, awake);
  return !waiting_.empty();
}

void CredentialSource::provide(const Result<Credentials>& credentials) {
  // Under the lock, so that close() can promise that nothing runs any more.
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  Result<Credentials> answer = credentials;
  if (answer) {
    if (const Outcome fits = check_credential("the user name that was provided", answer->username);
        !fits) {
      answer = fits.error();
    }
  }
  if (answer) {
    if (const Outcome fits = check_credential("the password that was provided", answer->password);
        !fits) {
      answer = fits.error();
    }
  }
  if (answer) {
    answer->version = version_.load(std::memory_order_relaxed) + 1;
    current_ = *answer;
    version_.store(answer->version, std::memory_order_release);
  }
  for (const Callback& callback : std::exchange(waiting_, {})) callback(answer);
}

Credentials CredentialSource::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

bool CredentialSource::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void CredentialSource::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  waiting_.clear();
  asked_.notify_all();
}

}  // namespace kvferry::redis
