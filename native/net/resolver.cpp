#include "net/resolver.hpp"

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "base/thread.hpp"

namespace kvferry::net {

struct Resolver::State {
  explicit State(LookUp function) : look_up(std::move(function)) {}

  const LookUp look_up;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Endpoint> order;                           // not begun
  std::map<std::string, std::deque<Callback>> waiting;  // by endpoint, begun or not
  std::size_t threads = 0;
  std::size_t idle = 0;
  bool stopped = false;
  std::mutex callback_mutex;  // held while callbacks run, so that the destructor can wait for them
};

Resolver::Resolver(LookUp look_up) : state_(std::make_shared<State>(std::move(look_up))) {}

Resolver::~Resolver() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
  }
  state_->wake.notify_all();
  const std::lock_guard wait_for_callback(state_->callback_mutex);
  const std::lock_guard lock(state_->mutex);
  state_->waiting.clear();
}

void Resolver::request(const Endpoint& endpoint, Callback callback) {
  std::unique_lock lock(state_->mutex);
  const bool asked = state_->waiting.contains(endpoint.text());
  const std::size_t unbegun = state_->order.size() + (asked ? 0 : 1);
  if (state_->idle < unbegun && state_->threads < kThreads) {
    try {
      Thread("kvferry-dns", [state = state_] { run(state); }).detach();
      ++state_->threads;
    } catch (const std::system_error& problem) {
      if (state_->threads == 0) {
        lock.unlock();
        return callback(Error{Errc::kSystem, "cannot look up " + endpoint.host +
                                                 ": no thread can be started: " + problem.what()});
      }
    }
  }
  auto& callbacks = state_->waiting[endpoint.text()];
  callbacks.push_back(std::move(callback));
  if (callbacks.size() > kWaitingMax) callbacks.pop_front();
  if (asked) return;
  state_->order.push_back(endpoint);
  state_->wake.notify_one();
}

Result<std::vector<Address>> Resolver::guarded(const LookUp& look_up, const Endpoint& endpoint) {
  try {
    return look_up(endpoint);
  } catch (const std::exception& problem) {  // e.g. no memory: the process lives on
    return Error{Errc::kSystem, "cannot look up " + endpoint.host + ": " + problem.what()};
  }
}

void Resolver::run(const std::shared_ptr<State>& state) {
  for (;;) {
    Endpoint endpoint;
    {
      std::unique_lock lock(state->mutex);
      ++state->idle;
      state->wake.wait(lock, [&] { return state->stopped || !state->order.empty(); });
      --state->idle;
      if (state->stopped) return;
      endpoint = std::move(state->order.front());
      state->order.pop_front();
    }
    const auto addresses = guarded(state->look_up, endpoint);
    const std::lock_guard running(state->callback_mutex);
    std::deque<Callback> callbacks;
    {
      const std::lock_guard lock(state->mutex);
      if (state->stopped) return;  // `waiting` may be empty
      callbacks = std::move(state->waiting.extract(endpoint.text()).mapped());
    }
    for (const Callback& callback : callbacks) {
      {
        const std::lock_guard lock(state->mutex);
        if (state->stopped) return;
      }
      callback(addresses);
    }
  }
}

}  // namespace kvferry::net
