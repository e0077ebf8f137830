#pragma once
// Resolver: name look-ups on threads of their own, because getaddrinfo() can block for minutes.
//
// One look-up answers all that ask for the same endpoint meanwhile, and names whose DNS server is
// silent hold up a few others at most: there are kThreads.
//
// Threads: request() from any thread; callbacks run on the resolver's threads, one at a time, or in
// request() itself: with kSystem, where there is no thread and none can be started now. The next
// request() tries that again.
// Lifetime: the destructor returns at once, even while the system resolver blocks; a callback that
// has not begun by then never runs, and one that runs is waited for.

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "net/address.hpp"

namespace kvferry::net {

class Resolver {
 public:
  using Callback = std::function<void(Result<std::vector<Address>>)>;
  using LookUp = std::function<Result<std::vector<Address>>(const Endpoint&)>;
  static constexpr std::size_t kThreads = 4;
  static constexpr std::size_t kWaitingMax = 1024;  // for one endpoint

  explicit Resolver(LookUp look_up = resolve);
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Looks the endpoint up and calls back exactly once, unless this object is destroyed before or
  // kWaitingMax others ask for the same endpoint before it answers.
  void request(const Endpoint& endpoint, Callback callback);

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);
  static Result<std::vector<Address>> guarded(const LookUp& look_up, const Endpoint& endpoint);
  std::shared_ptr<State> state_;  // shared with the threads, which may outlive this object
};

}  // namespace kvferry::net
