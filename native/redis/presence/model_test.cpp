// PresenceState and PresenceFeed against a model cluster, at random: whatever is delivered when,
// absent is said only of a key that was absent since the oldest news that is still on its way.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "redis/presence/feed.hpp"
#include "redis/presence/test_cluster.hpp"

namespace kvferry::redis {
namespace {

constexpr std::size_t kNodes = 3;
constexpr Nanos kStep = 2 * kMilli;

std::vector<std::string> some_keys() {
  std::vector<std::string> keys;
  for (int index = 0; index < 9; ++index) keys.push_back("kv:" + std::to_string(index));
  keys.push_back("kv:{x}1");  // of one slot
  keys.push_back("kv:{x}2");
  return keys;
}

class Journey {
 public:
  Journey(std::uint32_t seed, PresenceLimits limits)
      : random_(seed), state_("kv:", true, limits, {seed, 1}) {
    for (std::size_t node = 0; node < kNodes; ++node) {
      ids_.push_back(state_.join());
      connect(node);
    }
  }

  void step() {
    ++cluster_.tick;
    now_ += static_cast<Nanos>(random_() % 4) * kStep;
    act();
    for (std::size_t node = 0; node < kNodes; ++node) {
      if (random_() % 3 == 0) cluster_.turn(node);
      if (random_() % 3 == 0) cluster_.receive(node, feeds_[node]->next(now_));
      if (random_() % 3 == 0) deliver(node);
    }
    check();
  }

  // Everything comes to rest: then the view knows all.
  void rest() {
    for (const auto& [slot, owner] : std::map(cluster_.owner)) {
      cluster_.end_migration(slot);
      cluster_.end_takeover(slot);
    }
    for (int round = 0; round < 400; ++round) {
      ++cluster_.tick;
      now_ += 10 * kMilli;
      for (std::size_t node = 0; node < kNodes; ++node) {
        cluster_.receive(node, feeds_[node]->next(now_));
        cluster_.turn(node);
        while (!cluster_.nodes[node].out.empty()) deliver(node);
      }
      check();
    }
    for (const std::string& key : keys_) {
      EXPECT_EQ(look_up(key), cluster_.exists(key) ? Presence::kProbable : Presence::kAbsent)
          << key;
    }
    EXPECT_EQ(state_.stats().changing, 0u);
  }

  [[nodiscard]] int absent_said() const { return absent_said_; }
  [[nodiscard]] PresenceStats stats() const { return state_.stats(); }

 private:
  void act() {
    const std::string& key = keys_[random_() % keys_.size()];
    const std::size_t node = random_() % kNodes;
    switch (random_() % 40) {
      case 0:
      case 1:
      case 2:
      case 3:
        return cluster_.store(key);
      case 4:
      case 5:
      case 6:
        ours_.erase(key);
        return cluster_.remove(key);
      case 7:
      case 8:
        cluster_.store(key);
        ours_.erase(key);
        finishing_.push_back(key);
        return;
      case 9:
      case 10:
      case 11:
      case 12:
        return finish();
      case 13:
        return cluster_.begin_migration(key_slot(key), node);
      case 14:
      case 15:
        return cluster_.migrate(key);
      case 16:
        return cluster_.end_migration(key_slot(key));
      case 17:
        return cluster_.begin_takeover(key_slot(key), node);
      case 18:
        return cluster_.end_takeover(key_slot(key));
      case 19:
        if (random_() % 8 == 0) connect(node);
        return;
      case 20:
        if (random_() % 8 == 0) flush(node);
        return;
      default:
        return;
    }
  }
  // A SET of ours is reported: from now on the key may not be called absent.
  void finish() {
    if (finishing_.empty()) return;
    const std::string key = finishing_.front();
    finishing_.pop_front();
    state_.wrote(key);
    if (cluster_.exists(key)) ours_.insert(key);
  }
  void flush(std::size_t node) {
    cluster_.flush(node);
    std::erase_if(ours_, [&](const std::string& key) { return !cluster_.exists(key); });
  }
  void connect(std::size_t node) {
    cluster_.reconnect(node);
    state_.lost(ids_[node]);
    feeds_[node] = std::make_unique<PresenceFeed>(state_, ids_[node], true, 3600 * kSecond, now_);
    census_[node] = 0;
  }
  void deliver(std::size_t node) {
    auto& out = cluster_.nodes[node].out;
    if (out.empty()) return;
    const auto reply = std::move(out.front());
    out.pop_front();
    const Outcome taken = feeds_[node]->receive(reply.value, now_);
    EXPECT_TRUE(taken) << taken.error().context;
    if (reply.is_census) census_[node] = reply.tick;
  }
  Presence look_up(const std::string& key) const {
    const std::string_view name = key;
    Presence answer{};
    state_.look_up({&name, 1}, {&answer, 1});
    return answer;
  }

  // No news from before this is on its way. What is on nodes that have not announced changes since
  // all of them said last what they serve, is not known either.
  int horizon() const {
    int news = cluster_.tick;
    int announcing = 0;
    int census = cluster_.tick;
    for (std::size_t node = 0; node < kNodes; ++node) {
      const ModelNode& server = cluster_.nodes[node];
      for (const auto& reply : server.out) news = std::min(news, reply.tick);
      if (!server.announced.empty()) news = std::min(news, server.announced_since);
      announcing = std::max(announcing, server.tracking ? server.tracking_since : cluster_.tick);
      if (census_[node] > 0) census = std::min(census, census_[node]);
    }
    return announcing <= census ? news : std::min(news, census);
  }
  void check() {
    const int since = horizon();
    for (const std::string& key : keys_) {
      if (look_up(key) != Presence::kAbsent) continue;
      ++absent_said_;
      EXPECT_FALSE(ours_.contains(key)) << key << " was stored by us, tick " << cluster_.tick;
      const auto& states = cluster_.history[key];
      bool was_absent = !states.back().second;
      for (std::size_t i = states.size(); !was_absent && i-- > 0 && states[i].first >= since;) {
        was_absent = i > 0 && !states[i - 1].second;
      }
      EXPECT_TRUE(was_absent) << key << " was there since before " << since << ", now is "
                              << cluster_.tick;
    }
  }

  std::minstd_rand random_;
  const std::vector<std::string> keys_ = some_keys();
  ModelCluster cluster_{kNodes, keys_};
  PresenceState state_;
  std::vector<PresenceState::NodeId> ids_;
  std::array<std::unique_ptr<PresenceFeed>, kNodes> feeds_;
  std::array<int, kNodes> census_{};  // when the last CLUSTER NODES that arrived was written
  std::deque<std::string> finishing_;
  std::set<std::string> ours_;
  Nanos now_ = 0;
  int absent_said_ = 0;
};

class PresenceModel : public testing::TestWithParam<std::uint32_t> {};

TEST_P(PresenceModel, NeverSaysAbsentOfWhatIsThere) {
  for (std::uint32_t seed = 0; seed < 8 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(100 * GetParam() + seed));
    Journey run(100 * GetParam() + seed, {});
    for (int i = 0; i < 3000 && !testing::Test::HasFailure(); ++i) run.step();
    run.rest();
    EXPECT_GT(run.absent_said(), 1000);
    EXPECT_GT(run.stats().snapshots, 10u);
  }
}

TEST_P(PresenceModel, NorWhenItsLimitsAreSmall) {
  for (std::uint32_t seed = 0; seed < 8 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(100 * GetParam() + seed));
    Journey run(100 * GetParam() + seed, {.keys_max = 1000, .changing_max = 3, .asked_max = 1});
    for (int i = 0; i < 3000 && !testing::Test::HasFailure(); ++i) run.step();
    run.rest();
    EXPECT_GT(run.stats().forgotten, 3u);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PresenceModel, testing::Range(1u, 9u));

}  // namespace
}  // namespace kvferry::redis
