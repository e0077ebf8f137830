#pragma once
// Dispatcher: what the nodes of a client need of the whole: a place for commands that belong
// elsewhere, and somebody who hears of finished batches. Implemented by Router and Client.
//
// Threads: any. No call is made while a lock of a Server is held.

#include <string_view>

#include "redis/work_queue.hpp"

namespace kvferry::redis {

class Server;

class Dispatcher {
 public:
  // The last command of a batch settled.
  virtual void finished(Batch& batch) = 0;
  // A framed value cannot be trusted: see the command's fault.
  virtual void corrupt(Batch& batch, const Command& command) = 0;
  // There may be something to do for every connection.
  virtual void wake_workers() = 0;
  // There may be for those of this worker to this node.
  virtual void wake(std::size_t worker, const Server& server) = 0;
  // Sends a command to the node that it belongs to now, which may not be the one that had it.
  virtual void route(Work work) = 0;
  // `from` answered MOVED, ASK or TRYAGAIN.
  virtual void redirected(Server& from, Work work, std::string_view answer) = 0;
  // A node was lost or has changed its role: the topology should be looked at again.
  virtual void suspect() = 0;

 protected:
  ~Dispatcher() = default;
};

}  // namespace kvferry::redis
