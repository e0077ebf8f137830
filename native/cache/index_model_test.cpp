// The index against a simple model, on random requests: paths of one tree, for every policy in both
// orders. The model is told which chunks left and asks whether they might.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include "cache/index.hpp"
#include "cache/test_requests.hpp"

namespace kvferry::cache {
namespace {

constexpr std::uint64_t kNodes = 120;
constexpr std::size_t kCapacity = 24;

std::uint64_t parent_of(std::uint64_t node) { return node < 3 ? 0 : node / 3; }

std::vector<std::uint64_t> path_to(std::uint64_t node) {
  std::vector<std::uint64_t> path;
  for (; node != 0; node = parent_of(node)) path.insert(path.begin(), node);
  return path;
}

class Pages final : public PageSource {
 public:
  std::optional<std::uint64_t> take() override {
    if (used.size() == kCapacity - 2) return std::nullopt;  // fewer pages than places
    used.insert(++last);
    return last;
  }
  void give_back(std::uint64_t page) noexcept override {
    if (used.erase(page) != 1) foreign = true;
  }
  std::set<std::uint64_t> used;
  std::uint64_t last = 0;
  bool foreign = false;
};

class Play {
 public:
  // Without `trouble` nothing is removed, aborted, dropped or stored without its parents.
  Play(const char* policy, bool leaf_first, bool trouble, std::uint64_t seed)
      : index_(std::move(*Index::create(kCapacity, policy, leaf_first, &pages_))),
        leaf_first_(leaf_first),
        trouble_(trouble),
        random_(seed) {}

  void step() {
    request_ = path_to(1 + random_() % (kNodes - 1));
    const Request request(request_);
    const std::uint64_t evictions = index_->stats().evictions;
    const auto before = model_;
    shed_ = 0;
    may_evict_ = 0;
    act(request, random_() % 13);
    settle(index_->stats().evictions - evictions, before);
  }

 private:
  struct Chunk {
    bool ready = false;
    int leases = 0, pins = 0;
  };
  using Model = std::map<std::uint64_t, Chunk>;
  struct Held {
    std::vector<std::uint64_t> nodes;
    std::vector<ChunkRef> refs;
  };

  std::size_t ready_run() const {
    std::size_t run = 0;
    while (run < request_.size() && is_ready(request_[run])) ++run;
    return run;
  }
  bool is_ready(std::uint64_t node) const { return model_.contains(node) && model_.at(node).ready; }

  void act(Hashes hashes, std::uint64_t what) {
    const std::size_t run = ready_run();
    switch (what) {
      case 0:
        EXPECT_EQ(index_->lookup(hashes).ready, run);
        break;
      case 1:
        EXPECT_EQ(index_->touch(hashes), run);
        break;
      case 2: {
        Held lease;
        index_->acquire(hashes, lease.refs);
        ASSERT_EQ(lease.refs.size(), run);
        lease.nodes.assign(request_.begin(), request_.begin() + static_cast<std::ptrdiff_t>(run));
        for (const auto node : lease.nodes) ++model_[node].leases;
        leases_.push_back(std::move(lease));
        break;
      }
      case 3:
        if (leases_.empty()) break;
        for (std::size_t i = 0; i < leases_.front().refs.size(); ++i) {
          // A chunk that was removed took its leases along.
          if (index_->holds(leases_.front().refs[i])) --model_[leases_.front().nodes[i]].leases;
        }
        index_->release(leases_.front().refs);
        leases_.erase(leases_.begin());
        break;
      case 4:
      case 5:
      case 6:
        reserve(hashes);
        break;
      case 7:
      case 8:
        commit();
        break;
      case 9:
        if (!trouble_ || reservations_.empty()) break;
        index_->abort(reservations_.back().refs);
        drop_writing(reservations_.back());
        reservations_.pop_back();
        break;
      case 10:
        EXPECT_EQ(index_->pin(hashes), run);
        for (std::size_t i = 0; i < run; ++i) ++model_[request_[i]].pins;
        break;
      case 11:
        index_->unpin(hashes);
        for (std::size_t i = 0; i < run; ++i) {
          int& pins = model_[request_[i]].pins;
          if (pins > 0) --pins;
        }
        break;
      default:
        evict_or_remove(hashes);
    }
  }

  void reserve(Hashes hashes) {
    Held held;
    std::vector<std::uint32_t> indices;
    const std::size_t first =
        trouble_ && random_() % 4 == 0 ? random_() % (request_.size() + 1) : 0;
    const auto absent = static_cast<std::size_t>(
        std::count_if(request_.begin() + static_cast<std::ptrdiff_t>(first), request_.end(),
                      [&](std::uint64_t node) { return !model_.contains(node); }));
    shed_ = index_->reserve(hashes, first, held.refs, indices);
    may_evict_ = absent;
    ASSERT_EQ(held.refs.size(), indices.size());
    ASSERT_EQ(held.refs.size() + shed_, absent);
    for (const std::uint32_t i : indices) {
      ASSERT_FALSE(model_.contains(request_[i]));
      model_[request_[i]] = {};
      held.nodes.push_back(request_[i]);
    }
    reservations_.push_back(std::move(held));
  }

  void commit() {
    if (reservations_.empty()) return;
    const Held held = reservations_.front();
    reservations_.erase(reservations_.begin());
    std::vector<std::uint8_t> ok;
    std::size_t expected = 0;
    for (std::size_t i = 0; i < held.refs.size(); ++i) {
      ok.push_back(!trouble_ || random_() % 5 != 0);
      if (!index_->holds(held.refs[i])) continue;
      if (ok[i] != 0) {
        model_[held.nodes[i]].ready = true;
        ++expected;
      } else {
        model_.erase(held.nodes[i]);
      }
    }
    ASSERT_EQ(index_->commit(held.refs, ok), expected);
  }

  void drop_writing(const Held& held) {
    for (const auto node : held.nodes) {
      if (model_.contains(node) && !model_[node].ready) model_.erase(node);
    }
  }

  void evict_or_remove(Hashes hashes) {
    if (trouble_ && random_() % 3 == 0) {
      // One chunk of the middle, whatever its state.
      const auto node = request_[random_() % request_.size()];
      EXPECT_EQ(index_->remove(Request{node}), model_.erase(node));
      for (auto& held : reservations_) {  // a later reservation of it is another one
        for (auto& other : held.nodes) other = other == node ? 0 : other;
      }
      return;
    }
    std::vector<ChunkHash> victims;
    may_evict_ = 3;
    request_.clear();
    index_->evict(3, victims);
    shed_ = 3 - victims.size();
    (void)hashes;
  }

  bool has_resident_child(std::uint64_t node) const {
    return std::ranges::any_of(model_,
                               [&](const auto& chunk) { return parent_of(chunk.first) == node; });
  }

  // Learns from the index who left, and checks that each of them might.
  void settle(std::uint64_t evictions, const Model& before) {
    std::vector<std::uint64_t> gone;
    for (const auto& [node, chunk] : model_) {
      if (index_->known(hash_of(node)) <= Known::kEvicted) gone.push_back(node);
    }
    ASSERT_EQ(gone.size(), evictions);
    ASSERT_LE(evictions, may_evict_);
    for (const auto node : gone) model_.erase(node);
    for (const auto node : gone) {
      const Chunk& chunk = before.at(node);
      ASSERT_TRUE(chunk.ready && chunk.leases == 0 && chunk.pins == 0) << node;
      ASSERT_EQ(std::ranges::count(request_, node), 0) << "of the request itself";
      // Its children had to go first; those that were orphans may have stayed.
      if (leaf_first_ && has_resident_child(node)) {
        ASSERT_TRUE(orphans_.contains(node)) << node << " left its children";
      }
    }
    note_orphans();
    IndexStats stats;
    for (const auto& [node, chunk] : model_) {
      ++(chunk.ready ? stats.ready : stats.writing);
      stats.leased += chunk.leases > 0;
      stats.pinned += chunk.pins > 0;
      ASSERT_EQ(index_->known(hash_of(node)), !chunk.ready       ? Known::kWriting
                                              : chunk.pins > 0   ? Known::kPinned
                                              : chunk.leases > 0 ? Known::kLeased
                                                                 : Known::kReady);
    }
    ASSERT_EQ(index_->stats().ready, stats.ready);
    ASSERT_EQ(index_->stats().writing, stats.writing);
    ASSERT_EQ(index_->stats().leased, stats.leased);
    ASSERT_EQ(index_->stats().pinned, stats.pinned);
    ASSERT_EQ(pages_.used.size(), model_.size());
    ASSERT_FALSE(pages_.foreign);
    if (shed_ > 0) expect_nothing_evictable();
  }

  void expect_nothing_evictable() {
    for (const auto& [node, chunk] : model_) {
      const bool kept = !chunk.ready || chunk.leases > 0 || chunk.pins > 0 ||
                        std::ranges::count(request_, node) > 0 ||
                        (leaf_first_ && has_resident_child(node));
      ASSERT_TRUE(kept) << node << " could have gone";
    }
  }

  // Parents whose resident children may not know them: they came back, or came later.
  void note_orphans() {
    const auto before = orphans_.size();
    for (const auto& [node, chunk] : model_) {
      const auto parent = parent_of(node);
      if (parent != 0 && !model_.contains(parent)) orphans_.insert(parent);
    }
    // In plain order chunks become orphans by eviction, which is why leaf-first is the default.
    ASSERT_TRUE(trouble_ || !leaf_first_ || orphans_.size() == before);
  }

  Pages pages_;
  std::unique_ptr<Index> index_;
  const bool leaf_first_;
  const bool trouble_;
  std::mt19937_64 random_;
  Model model_;
  std::vector<Held> leases_, reservations_;
  std::vector<std::uint64_t> request_;
  std::set<std::uint64_t> orphans_;
  std::size_t shed_ = 0, may_evict_ = 0;
};

TEST(IndexModel, AgreesOnRandomRequests) {
  for (const char* policy : kAllPolicies) {
    for (const bool leaf_first : {true, false}) {
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        SCOPED_TRACE(std::string(policy) + (leaf_first ? " leaf-first " : " plain ") +
                     std::to_string(seed));
        Play play(policy, leaf_first, /*trouble=*/seed % 2 == 1, seed);
        for (int step = 0; step < 600; ++step) {
          ASSERT_NO_FATAL_FAILURE(play.step()) << "step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvferry::cache
