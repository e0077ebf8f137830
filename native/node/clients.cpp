#include "node/clients.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::node {

std::optional<std::uint64_t> Clients::add(std::string_view address, UnixMs now, Mailbox* mailbox) {
  const std::lock_guard lock(mutex_);
  if (entries_.size() - doomed_ >= connections_max()) {
    if (silent_.empty()) return std::nullopt;
    doom(entries_.at(*silent_.begin()));
  }
  const std::uint64_t id = next_id_++;
  Entry entry;
  entry.facts.id = id;
  entry.facts.address = address;
  entry.facts.since = now;
  entry.mailbox = mailbox;
  entries_.emplace(id, std::move(entry));
  silent_.insert(id);
  return id;
}

void Clients::remove(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  if (at->second.facts.tracking()) tracking_.fetch_sub(1, std::memory_order_relaxed);
  if (at->second.doomed) {
    --doomed_;
  } else {
    held_bytes_ -= at->second.bytes();
  }
  silent_.erase(id);
  entries_.erase(at);
}

void Clients::update(std::uint64_t id, const std::function<void(ClientEntry&)>& change) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  Entry& entry = at->second;
  ClientEntry& facts = entry.facts;
  const bool before = facts.tracking();
  const std::size_t bytes_before = entry.bytes();
  change(facts);
  entry.prefix_bytes = 0;
  for (const std::string& prefix : facts.prefixes) entry.prefix_bytes += prefix.size() + kKeyCost;
  count_bytes(entry, bytes_before);
  if (facts.tracking() && !before) tracking_.fetch_add(1, std::memory_order_relaxed);
  if (!facts.tracking() && before) tracking_.fetch_sub(1, std::memory_order_relaxed);
  hungriest_goes();
}

// --- Who holds what -----------------------------------------------------------------------------

void Clients::spoke(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  silent_.erase(id);
}

void Clients::drop_silent(std::size_t count) {
  const std::lock_guard lock(mutex_);
  for (; count > 0 && !silent_.empty(); --count) doom(entries_.at(*silent_.begin()));
}

void Clients::doom(Entry& entry) {
  silent_.erase(entry.facts.id);
  if (!std::exchange(entry.doomed, true)) {
    ++doomed_;
    held_bytes_ -= entry.bytes();
  }
  entry.news_bytes = 0;
  entry.news = {.killed = true, .cleared = false, .keys = {}};
  post(entry);
}

void Clients::count_bytes(const Entry& entry, std::size_t before) noexcept {
  if (!entry.doomed) held_bytes_ = held_bytes_ - before + entry.bytes();
}

void Clients::hold(std::uint64_t id, const Held& held, Nanos now) {
  const std::lock_guard lock(mutex_);
  now_ = std::max(now_, now);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  const std::size_t before = at->second.bytes();
  at->second.held = held;
  count_bytes(at->second, before);
  hungriest_goes();
}

void Clients::hungriest_goes() {
  while (held_bytes_ > held_bytes_max_) {
    Entry* hungriest = nullptr;
    double most = -1;
    for (auto& [id, entry] : entries_) {
      if (entry.doomed) continue;
      const Nanos age = std::max<Nanos>(now_ - entry.held.since, 0) + kMilli;
      // Prefixes stay as long as somebody tracks, and are not held against him for that.
      const double hunger = static_cast<double>(entry.waiting_bytes()) * static_cast<double>(age) +
                            static_cast<double>(entry.prefix_bytes) * static_cast<double>(kSecond);
      if (hunger <= most) continue;
      most = hunger;
      hungriest = &entry;
    }
    if (hungriest == nullptr) return;
    hungry_closed_.fetch_add(1, std::memory_order_relaxed);
    doom(*hungriest);
  }
}

void Clients::relieve(Nanos now) {
  const std::lock_guard lock(mutex_);
  Entry* hungriest = nullptr;
  double most = 0;
  for (auto& [id, entry] : entries_) {
    const Nanos age = now - entry.held.since;
    if (entry.doomed || entry.held.page_bytes == 0 || age < kStalled) continue;
    const double hunger = static_cast<double>(entry.held.page_bytes) * static_cast<double>(age);
    if (hunger <= most) continue;
    most = hunger;
    hungriest = &entry;
  }
  if (hungriest == nullptr) return;
  hungry_closed_.fetch_add(1, std::memory_order_relaxed);
  doom(*hungriest);
}

std::size_t Clients::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

// --- Others -------------------------------------------------------------------------------------

std::vector<ClientEntry> Clients::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<ClientEntry> out;
  out.reserve(entries_.size());
  for (const auto& [id, entry] : entries_) out.push_back(entry.facts);
  return out;
}

std::size_t Clients::count() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

bool Clients::kill(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return false;
  doom(at->second);
  return true;
}

void Clients::post(Entry& entry) {
  if (std::exchange(entry.posted, true) || entry.mailbox == nullptr) return;
  entry.mailbox->post(entry.facts.id);
}

Clients::News Clients::take(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return {};
  Entry& entry = at->second;
  const std::size_t before = entry.bytes();
  entry.posted = false;
  entry.news_bytes = 0;
  count_bytes(entry, before);
  return std::exchange(entry.news, {.killed = entry.doomed, .cleared = false, .keys = {}});
}

void Clients::changed(const std::vector<std::string>& keys) {
  if (tracking_count() == 0) return;
  const std::lock_guard lock(mutex_);
  for (auto& [id, entry] : entries_) {
    if (!entry.facts.tracking() || entry.doomed) continue;
    const std::size_t before = entry.bytes();
    if (entry.waiting_bytes() == 0) entry.held.since = now_;
    for (const std::string& key : keys) {
      const auto begins = [&](const std::string& prefix) { return key.starts_with(prefix); };
      if (std::ranges::none_of(entry.facts.prefixes, begins)) continue;
      entry.news_bytes += key.size() + kKeyCost;
      entry.news.keys.push_back(key);
      post(entry);
    }
    count_bytes(entry, before);
    if (entry.news_bytes > announced_bytes_max_) doom(entry);
  }
  hungriest_goes();
}

void Clients::cleared() {
  if (tracking_count() == 0) return;
  const std::lock_guard lock(mutex_);
  for (auto& [id, entry] : entries_) {
    if (!entry.facts.tracking() || entry.doomed) continue;
    const std::size_t before = entry.bytes();
    entry.news.cleared = true;
    entry.news.keys.clear();
    entry.news_bytes = 0;
    count_bytes(entry, before);
    post(entry);
  }
}

}  // namespace kvferry::node
