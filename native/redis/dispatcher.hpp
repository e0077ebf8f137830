#pragma once
// Dispatcher: what the nodes of a client need of the whole: a place for commands that belong
// elsewhere, and somebody who hears of finished batches. Implemented by Client. AskedNode: what the
// whole needs of the node that sent a command elsewhere. Implemented by Server.
//
// Threads: any. No call is made while a lock of a Server is held.

#include <string_view>

#include "base/errors.hpp"
#include "net/address.hpp"
#include "redis/work_queue.hpp"

namespace kvferry::redis {

class AskedNode {
 public:
  [[nodiscard]] virtual const net::Endpoint& endpoint() const noexcept = 0;
  // The outcome of one command.
  virtual void settle(Work work, Status status, Reason why) = 0;

 protected:
  ~AskedNode() = default;
};

class Dispatcher {
 public:
  // The last command of a batch settled.
  virtual void finished(Batch& batch) = 0;
  // A framed value cannot be trusted: see the command's fault.
  virtual void corrupt(Batch& batch, const Command& command) = 0;
  // There may be something to do for every connection.
  virtual void wake_workers() = 0;
  // There may be for those of this worker to this node.
  virtual void wake(std::size_t worker, const AskedNode& server) = 0;
  // Sends a command to the node that it belongs to now, which may not be the one that had it.
  virtual void route(Work work) = 0;
  // `from` answered MOVED, ASK or TRYAGAIN.
  virtual void redirected(AskedNode& from, Work work, std::string_view answer) = 0;
  // A node was lost or has changed its role: the topology should be looked at again.
  virtual void suspect() = 0;

 protected:
  ~Dispatcher() = default;
};

}  // namespace kvferry::redis
