#include "redis/work_queue.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace kvferry::redis {

Lane lane_of(Verb verb) noexcept {
  switch (verb) {
    case Verb::kGet:
      return Lane::kRead;
    case Verb::kSet:
      return Lane::kWrite;
    case Verb::kExists:
    case Verb::kTouch:
    case Verb::kDelete:
    case Verb::kPing:
    case Verb::kCall:
      break;
  }
  return Lane::kSmall;
}

Command* WorkQueue::Tile::front() noexcept {
  auto& all = batch->commands();
  if (!commands.empty()) return next < commands.size() ? &all[commands[next]] : nullptr;
  while (next < all.size() && all[next].deferred) ++next;
  return next < all.size() ? &all[next] : nullptr;
}

bool WorkQueue::push(const std::shared_ptr<Batch>& batch) {
  return push(Tile{batch, {}}, batch->sendable());
}

bool WorkQueue::push(const std::shared_ptr<Batch>& batch, std::vector<std::uint32_t> commands) {
  const std::size_t count = commands.size();
  return push(Tile{batch, std::move(commands)}, count);
}

bool WorkQueue::push(Tile tile, std::size_t count) {
  const std::lock_guard lock(mutex_);
  // Work that comes back may exceed the limit, so nothing is subtracted from it.
  if (waiting() + count > commands_max_) return false;
  const Lane lane = lane_of(tile.batch->options().verb);
  waiting_[static_cast<std::size_t>(lane)] += count;
  queue(lane).tiles.push_back(std::move(tile));
  return true;
}

Work WorkQueue::pull(Lane lane) {
  const std::lock_guard lock(mutex_);
  Queue& from = queue(lane);
  if (!from.returned.empty()) {
    const Work work = from.returned.front();
    from.returned.pop_front();
    leaves(lane);
    return work;
  }
  if (from.tiles.empty()) return {};
  Tile& tile = from.tiles.front();
  Command* command = tile.front();
  leaves(lane);
  ++tile.next;
  Batch* batch = tile.batch.get();
  // The last command leaves the queue; the batch lives on with whoever submitted it.
  if (tile.front() == nullptr) from.tiles.pop_front();
  return {batch, command};
}

void WorkQueue::put_back(Work work) {
  const std::lock_guard lock(mutex_);
  const Lane lane = lane_of(work.batch->options().verb);
  queue(lane).returned.push_back(work);
  ++waiting_[static_cast<std::size_t>(lane)];
}

void WorkQueue::leaves(Lane lane, std::size_t count) {
  std::atomic<std::size_t>& waits = waiting_[static_cast<std::size_t>(lane)];
  check(waits >= count, "what waits is counted");
  waits -= count;
}

bool WorkQueue::has_work(Lane lane) const {
  const std::lock_guard lock(mutex_);
  const Queue& from = lanes_[static_cast<std::size_t>(lane)];
  return !from.returned.empty() || !from.tiles.empty();
}

std::vector<Work> WorkQueue::remove(Nanos now, bool all) {
  const std::lock_guard lock(mutex_);
  std::vector<Work> removed;
  removed.reserve(waiting());  // nothing may throw between leaving one list and entering another
  const auto goes = [&](const Batch& batch) {
    return all || batch.cancelled() || batch.options().deadline <= now;
  };
  for (const Lane lane : {Lane::kSmall, Lane::kRead, Lane::kWrite}) {
    Queue& from = queue(lane);
    const std::size_t before = removed.size();
    std::erase_if(from.returned, [&](const Work& work) {
      if (!goes(*work.batch)) return false;
      removed.push_back(work);
      return true;
    });
    std::erase_if(from.tiles, [&](Tile& tile) {
      if (!goes(*tile.batch)) return false;
      for (; Command* command = tile.front(); ++tile.next) {
        removed.push_back({tile.batch.get(), command});
      }
      return true;
    });
    leaves(lane, removed.size() - before);
  }
  return removed;
}

}  // namespace kvferry::redis
