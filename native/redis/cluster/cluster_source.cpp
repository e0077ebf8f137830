#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "redis/cluster/topology_cluster.hpp"
#include "redis/cluster/topology_source.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kConnectLimit = 500 * kMilli;
constexpr Nanos kAnswerLimit = 1 * kSecond;

class ClusterSource final : public TopologySource {
 public:
  ClusterSource(const Config& config, const LinkContext& context)
      : config_(config), context_(context), random_(std::random_device{}()) {}

  Result<SlotMap> ask(const std::vector<net::Endpoint>& known, bool troubled) override {
    if (link_ && !troubled) {
      auto map = ask_link();
      if (map && map->covered() > 0) return map;
    }
    link_.reset();
    std::vector<net::Endpoint> candidates = known;
    // Whoever answers first may be wrong for a while; the next time another one is asked.
    std::ranges::shuffle(candidates, random_);
    candidates.push_back(config_.endpoint);
    candidates.insert(candidates.end(), config_.nodes.begin(), config_.nodes.end());
    Result<SlotMap> answer = Error{Errc::kConnect, "the cluster has no node"};
    for (const net::Endpoint& endpoint : candidates) {
      auto link = Link::open(context_, endpoint, config_, monotonic_ns() + limit());
      if (!link) {
        answer = link.error();
        if (answer.error().code == Errc::kClosed) break;
        continue;
      }
      link_ = std::move(*link);
      answer = ask_link();
      if (answer && answer->covered() > 0) return answer;
      if (answer) answer = Error{Errc::kServer, endpoint.text() + ": its cluster has no slots"};
      link_.reset();
    }
    return answer;
  }

 private:
  Result<SlotMap> ask_link() {
    static constexpr std::array<std::string_view, 2> kWords{"CLUSTER", "SLOTS"};
    auto reply = link_->call(kWords, monotonic_ns() + kAnswerLimit);
    if (!reply)
      return Error{reply.error().code, link_->endpoint().text() + ": " + reply.error().context};
    return parse_cluster_slots(*reply, link_->endpoint());
  }
  [[nodiscard]] Nanos limit() const noexcept {
    return std::min(config_.connect_timeout, kConnectLimit);
  }

  const Config& config_;
  const LinkContext context_;
  std::minstd_rand random_;
  std::unique_ptr<Link> link_;
};

}  // namespace

std::unique_ptr<TopologySource> cluster_source(const Config& config, const LinkContext& context) {
  return std::make_unique<ClusterSource>(config, context);
}

}  // namespace kvferry::redis
