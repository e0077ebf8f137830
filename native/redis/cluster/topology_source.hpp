#pragma once
// TopologySource: asks whoever knows where the nodes are: any node of a cluster, or the Sentinels.
//
// Threads: the control thread's. Every call is bounded by a few hundred milliseconds for each node
// that does not answer.

#include <cstdint>
#include <memory>
#include <vector>

#include "redis/cluster/slot_map.hpp"
#include "redis/link.hpp"

namespace kvferry::redis {

class TopologySource {
 public:
  virtual ~TopologySource() = default;
  // `known`: nodes that were seen lately, the healthy ones first. `troubled`: one of them is lost,
  // so whoever was asked last may be wrong.
  // Fails with: why the last one that was asked could not say.
  virtual Result<SlotMap> ask(const std::vector<net::Endpoint>& known, bool troubled) = 0;
  // Descriptors that become readable when somebody announces a change: then it is time to ask.
  [[nodiscard]] virtual std::vector<int> announcements() const { return {}; }
};

// CLUSTER SLOTS of one node after another, until one answers.
std::unique_ptr<TopologySource> cluster_source(const Config& config, const LinkContext& context);

// What all Sentinels say; the answer with the highest epoch counts, once the node that it names
// says itself that it is the master. The map has one shard with all slots. Sentinels announce a
// failover (RESP3), so that an old master is left as soon as they have replaced it.
std::unique_ptr<TopologySource> sentinel_source(const Config& config, const LinkContext& context);

}  // namespace kvferry::redis
