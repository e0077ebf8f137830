#pragma once
// TopologyWatch: the control thread. It drives a MapRefresh: waits until something is to be asked
// or somebody suspects the map, and asks the source (many suspicions make one question).
//
// Threads: suspect() and stop() from any; its own thread calls the source and the router.

#include <atomic>
#include <memory>

#include "base/event_fd.hpp"
#include "base/thread.hpp"
#include "redis/cluster/map_refresh.hpp"
#include "redis/cluster/topology_source.hpp"

namespace kvferry::redis {

class TopologyWatch {
 public:
  TopologyWatch(const Config& config, Router& router, LogSink& log,
                std::unique_ptr<TopologySource> source, EventFd wake);

  void start();
  // The map may be out of date. Cheap, and never blocks for long.
  void suspect();
  // Returns when the thread has ended. The links' stop signal must be raised before.
  void stop();

 private:
  void run() noexcept;
  void loop();
  // Until `until`, a signal, or an announcement; true for the last.
  bool wait(Nanos until);

  Router& router_;
  LogSink& log_;
  MapRefresh refresh_;
  std::unique_ptr<TopologySource> source_;  // null once stopped
  const EventFd wake_;
  std::atomic<bool> suspected_{false};
  std::atomic<bool> stopping_{false};
  Thread thread_;
};

}  // namespace kvferry::redis
