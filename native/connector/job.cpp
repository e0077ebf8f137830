#include "connector/job.hpp"

namespace kvferry::connector {

void Job::reserve(std::size_t keys, std::size_t key_bytes) {
  items_.reserve(keys);
  keys_.reserve(key_bytes);
}

void Job::add(std::string_view key, MutableBytes buffer) {
  Item item;
  item.buffer = buffer;
  item.key_offset = static_cast<std::uint32_t>(keys_.size());
  item.key_length = static_cast<std::uint16_t>(key.size());
  keys_ += key;
  items_.push_back(item);
  unsettled_.store(items_.size(), std::memory_order_relaxed);
}

std::string_view Job::key(std::size_t index) const noexcept {
  const Item& item = items_[index];
  return std::string_view(keys_).substr(item.key_offset, item.key_length);
}

Status Job::withdrawn(std::size_t index, Nanos now) const noexcept {
  if (cancelled() || behind_prefix(index)) return Status::kCancelled;
  if (now >= options_.deadline) return Status::kTimeout;
  return Status::kPending;
}

bool Job::complete(std::size_t index, Status status, std::uint64_t size, Reason why) {
  Item& item = items_[index];
  item.value_size = size;
  // Pairs with progress().
  std::atomic_ref(item.status).store(status, std::memory_order_release);
  if (status != Status::kOk && options_.prefix) end_prefix(index);
  note(why);
  return unsettled_.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

std::size_t Job::progress() const noexcept {
  std::size_t count = 0;
  for (const Item& item : items_) {
    // The object is not const; C++20 has no atomic_ref of what is.
    const std::atomic_ref status(const_cast<Status&>(item.status));
    if (status.load(std::memory_order_acquire) != Status::kOk) break;
    ++count;
  }
  return count;
}

void Job::results(std::uint8_t* statuses, std::uint64_t* sizes) const noexcept {
  for (std::size_t index = 0; index < items_.size(); ++index) {
    statuses[index] = static_cast<std::uint8_t>(items_[index].status);
    sizes[index] = items_[index].value_size;
  }
}

}  // namespace kvferry::connector
