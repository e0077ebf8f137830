#include "redis/work_queue.hpp"

#include <algorithm>

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
      break;
  }
  return Lane::kSmall;
}

bool WorkQueue::push(const std::shared_ptr<Batch>& batch) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = batch->sendable();
  // Work that comes back may exceed the limit, so nothing is subtracted from it.
  if (waiting_ + count > commands_max_) return false;
  waiting_ += count;
  queue(lane_of(batch->options().verb)).batches.push_back(batch);
  return true;
}

Work WorkQueue::pull(Lane lane, std::size_t bytes_max) {
  const std::lock_guard lock(mutex_);
  Queue& from = queue(lane);
  if (!from.returned.empty()) {
    const Work work = from.returned.front();
    if (work.command->size > bytes_max) return {};
    from.returned.pop_front();
    --waiting_;
    return work;
  }
  if (from.batches.empty()) return {};
  Batch* batch = from.batches.front().get();
  Command* command = &batch->commands()[batch->next];
  if (command->size > bytes_max) return {};
  --waiting_;
  // The last command leaves the queue; the batch lives on with whoever submitted it.
  do {
    ++batch->next;
  } while (batch->next < batch->commands().size() && batch->commands()[batch->next].deferred);
  if (batch->next == batch->commands().size()) from.batches.pop_front();
  return {batch, command};
}

void WorkQueue::put_back(Work work) {
  const std::lock_guard lock(mutex_);
  queue(lane_of(work.batch->options().verb)).returned.push_back(work);
  ++waiting_;
}

bool WorkQueue::has_work(Lane lane) const {
  const std::lock_guard lock(mutex_);
  const Queue& from = lanes_[static_cast<std::size_t>(lane)];
  return !from.returned.empty() || !from.batches.empty();
}

std::vector<Work> WorkQueue::remove(Nanos now, bool all) {
  const std::lock_guard lock(mutex_);
  std::vector<Work> removed;
  const auto goes = [&](const Batch& batch) {
    return all || batch.cancelled() || batch.options().deadline <= now;
  };
  for (Queue& from : lanes_) {
    std::erase_if(from.returned, [&](const Work& work) {
      if (!goes(*work.batch)) return false;
      removed.push_back(work);
      return true;
    });
    std::erase_if(from.batches, [&](const std::shared_ptr<Batch>& batch) {
      if (!goes(*batch)) return false;
      auto& commands = batch->commands();
      for (; batch->next < commands.size(); ++batch->next) {
        // What is deferred settles with the commands it waits for.
        Command& command = commands[batch->next];
        if (!command.deferred) removed.push_back({batch.get(), &command});
      }
      return true;
    });
  }
  waiting_ -= removed.size();
  return removed;
}

}  // namespace kvferry::redis
