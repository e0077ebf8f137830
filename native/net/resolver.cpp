#include "net/resolver.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/thread.hpp"

namespace kvferry::net {

struct Resolver::State {
  struct Request {
    Endpoint endpoint;
    Callback callback;
  };
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Request> requests;
  bool running = false;
  bool stopped = false;
  std::mutex callback_mutex;  // held while a callback runs, so that the destructor can wait for it
};

Resolver::Resolver() : state_(std::make_shared<State>()) {}

Resolver::~Resolver() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
    state_->requests.clear();
  }
  state_->wake.notify_all();
  const std::lock_guard wait_for_callback(state_->callback_mutex);
}

void Resolver::request(const Endpoint& endpoint, Callback callback) {
  const std::lock_guard lock(state_->mutex);
  state_->requests.push_back({endpoint, std::move(callback)});
  if (!state_->running) {
    state_->running = true;
    Thread("kvferry-dns", [state = state_] { run(state); }).detach();
  }
  state_->wake.notify_one();
}

void Resolver::run(const std::shared_ptr<State>& state) {
  for (;;) {
    State::Request request;
    {
      std::unique_lock lock(state->mutex);
      state->wake.wait(lock, [&] { return state->stopped || !state->requests.empty(); });
      if (state->stopped) return;
      request = std::move(state->requests.front());
      state->requests.pop_front();
    }
    auto addresses = resolve(request.endpoint);
    const std::lock_guard running(state->callback_mutex);
    {
      const std::lock_guard lock(state->mutex);
      if (state->stopped) return;
    }
    request.callback(std::move(addresses));
  }
}

}  // namespace kvferry::net
