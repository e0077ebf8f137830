#include "redis/io_thread.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

namespace kvferry::redis {
namespace {

constexpr std::uint64_t kWakeToken = 0;  // connections are numbered from 1

}  // namespace

Result<std::unique_ptr<IoThread>> IoThread::open(const Worker::Surroundings& shared,
                                                 std::size_t index) {
  auto poller = net::Poller::open();
  if (!poller) return poller.error();
  auto event = EventFd::open();
  if (!event) return event.error();
  std::unique_ptr<IoThread> thread(
      new IoThread(shared, index, std::move(*poller), std::move(*event)));
  if (auto watched = thread->poller_.watch(thread->wake_event_.fd(), kWakeToken, true, false);
      !watched) {
    return watched.error();
  }
  return thread;
}

IoThread::IoThread(const Worker::Surroundings& shared, std::size_t index, net::Poller poller,
                   EventFd wake_event)
    : index_(index),
      poller_(std::move(poller)),
      wake_event_(std::move(wake_event)),
      worker_(shared, index, poller_, [this] { wake_event_.signal(); }, monotonic_ns()) {}

void IoThread::start() {
  thread_ = Thread("kvferry-io-" + std::to_string(index_), [this] { run(); });
}

void IoThread::stop() noexcept {
  stopping_.store(true, std::memory_order_release);
  wake_event_.signal();
  thread_.join();
}

void IoThread::run() noexcept {
  try {
    loop();
  } catch (const std::exception& problem) {
    worker_.fail(problem.what());
  }
  worker_.shut_down(monotonic_ns());
}

void IoThread::loop() {
  while (!stopping_.load(std::memory_order_acquire)) {
    const Nanos now = monotonic_ns();
    const Nanos next = worker_.next_round(now);
    auto ready = poller_.wait(next == kNever ? kNever : next - now);
    wake_ups_.fetch_add(1, std::memory_order_relaxed);
    const auto told = [](const net::Ready& one) { return one.token == kWakeToken; };
    if (std::ranges::any_of(ready, told)) wake_event_.clear();
    while (worker_.step(ready, monotonic_ns())) {
    }
  }
}

}  // namespace kvferry::redis
