#pragma once
// Shards: which servers the keys of a run live on. One server has them all; a cluster is asked
// once, at the start. Every failure ends the process.

#include <cstddef>
#include <string>
#include <vector>

#include "bench/channel_open.hpp"
#include "redis/cluster/slot_map.hpp"
#include "redis/cluster/topology_cluster.hpp"
#include "resp/value.hpp"

namespace kvferry::bench {

class Shards {
 public:
  explicit Shards(const Options& o) {
    net::Endpoint seed{.host = o.text("--host"), .port = 0, .unix_path = o.text("--unix")};
    seed.port = static_cast<std::uint16_t>(o.number("--port"));
    if (!o.has("--cluster")) {
      endpoints_.push_back(seed);
      return;
    }
    const auto map = redis::parse_cluster_slots(ask(o, seed), seed);
    if (!map) die(map.error().context);
    if (map->covered() != redis::kSlotCount) die("the cluster does not serve all slots");
    map_ = *map;
    for (const redis::Shard& shard : map_.shards()) endpoints_.push_back(shard.primary.endpoint);
  }

  [[nodiscard]] std::size_t count() const { return endpoints_.size(); }
  [[nodiscard]] const net::Endpoint& endpoint(std::size_t shard) const { return endpoints_[shard]; }
  [[nodiscard]] std::size_t of(std::string_view key) const {
    return count() == 1 ? 0 : map_.shard_of(redis::key_slot(key));
  }

 private:
  static resp::Value ask(const Options& o, const net::Endpoint& seed) {
    const auto channel = open_channel(o, seed);
    channel->send_all("*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n");
    resp::ValueReader reader;
    resp::Value reply;
    for (;;) {
      char byte;  // one at a time: with --waitall, more would be waited for
      channel->receive(&byte, 1);
      reader.feed(as_bytes(std::string_view(&byte, 1)));
      const auto state = reader.next(reply);
      if (state == resp::ValueReader::State::kValue) return reply;
      if (state == resp::ValueReader::State::kBad) die(std::string(reader.error()));
    }
  }

  std::vector<net::Endpoint> endpoints_;
  redis::SlotMap map_;  // empty without a cluster
};

}  // namespace kvferry::bench
