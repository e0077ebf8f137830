#pragma once
// Resolver: name look-ups on a thread of their own, because getaddrinfo() can block for minutes.
//
// Threads: request() from any thread; the callback runs on the resolver's thread.
// Lifetime: the destructor returns at once, even while the system resolver blocks; a callback that
// has not begun by then never runs, and one that runs is waited for.

#include <functional>
#include <memory>
#include <vector>

#include "net/address.hpp"

namespace kvferry::net {

class Resolver {
 public:
  using Callback = std::function<void(Result<std::vector<Address>>)>;

  Resolver();
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Looks the endpoint up and calls back exactly once, unless this object is destroyed before.
  void request(const Endpoint& endpoint, Callback callback);

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
};

}  // namespace kvferry::net
