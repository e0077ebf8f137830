#include "node/clients.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::node {

std::optional<std::uint64_t> Clients::add(std::string_view address, UnixMs now, Mailbox* mailbox) {
  const std::lock_guard lock(mutex_);
  if (entries_.size() >= connections_max()) return std::nullopt;
  const std::uint64_t id = next_id_++;
  Entry entry;
  entry.facts.id = id;
  entry.facts.address = address;
  entry.facts.since = now;
  entry.mailbox = mailbox;
  entries_.emplace(id, std::move(entry));
  return id;
}

void Clients::remove(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  if (at->second.facts.tracking()) tracking_.fetch_sub(1, std::memory_order_relaxed);
  entries_.erase(at);
}

void Clients::update(std::uint64_t id, const std::function<void(ClientEntry&)>& change) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  ClientEntry& facts = at->second.facts;
  const bool before = facts.tracking();
  change(facts);
  if (facts.tracking() && !before) tracking_.fetch_add(1, std::memory_order_relaxed);
  if (!facts.tracking() && before) tracking_.fetch_sub(1, std::memory_order_relaxed);
}

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
  at->second.news.killed = true;
  post(at->second);
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
  at->second.posted = false;
  at->second.news_bytes = 0;
  return std::exchange(at->second.news, {});
}

void Clients::changed(const std::vector<std::string>& keys) {
  if (tracking_count() == 0) return;
  const std::lock_guard lock(mutex_);
  for (auto& [id, entry] : entries_) {
    if (!entry.facts.tracking()) continue;
    for (const std::string& key : keys) {
      const auto begins = [&](const std::string& prefix) { return key.starts_with(prefix); };
      if (std::ranges::none_of(entry.facts.prefixes, begins)) continue;
      entry.news_bytes += key.size() + kKeyCost;
      if (entry.news_bytes > announced_bytes_max_) {
        entry.news = {.killed = true, .cleared = false, .keys = {}};
      } else {
        entry.news.keys.push_back(key);
      }
      post(entry);
    }
  }
}

void Clients::cleared() {
  if (tracking_count() == 0) return;
  const std::lock_guard lock(mutex_);
  for (auto& [id, entry] : entries_) {
    if (!entry.facts.tracking()) continue;
    entry.news.cleared = true;
    entry.news.keys.clear();
    entry.news_bytes = 0;
    post(entry);
  }
}

}  // namespace kvferry::node
