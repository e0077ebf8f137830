#pragma once
// TopologyWatch: the control thread. It keeps the router's map up to date: now and then, and soon
// after anybody suspects it (many suspicions make one look). It also sends on parked commands.
//
// Threads: suspect() and stop() from any; its own thread calls the source and the router.

#include <atomic>
#include <memory>
#include <string>

#include "base/event_fd.hpp"
#include "base/thread.hpp"
#include "redis/cluster/topology_source.hpp"
#include "redis/router.hpp"

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
  // Returns how long this map may be trusted.
  Nanos refresh();
  Nanos retry_delay() noexcept;

  const Config& config_;
  Router& router_;
  LogSink& log_;
  std::unique_ptr<TopologySource> source_;  // null once stopped
  const EventFd wake_;
  std::atomic<bool> suspected_{false};
  std::atomic<bool> stopping_{false};
  Nanos troubled_for_ = 0;  // how long it waited last, while something is lost
  std::string problem_;     // that was logged last
  Thread thread_;
};

}  // namespace kvferry::redis
