#include <algorithm>
#include <array>
#include <utility>

#include "redis/cluster/topology_sentinel.hpp"
#include "redis/cluster/topology_source.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kLimit = 300 * kMilli;
constexpr Nanos kAgainAfter = 1 * kSecond;  // for a Sentinel that did not answer
constexpr std::size_t kSentinelsMax = 16;

class SentinelSource final : public TopologySource {
 public:
  SentinelSource(const Config& config, const LinkContext& context)
      : config_(config), context_(context), sentinel_context_(context) {
    sentinel_context_.credentials = nullptr;  // Sentinels have users of their own
    greeting_.username = config.sentinel_username;
    greeting_.password = config.sentinel_password;
    greeting_.client_name = config.client_name;
    greeting_.protocol = config.protocol;
    greeting_.sentinel = true;
    add(config.endpoint);
    for (const net::Endpoint& endpoint : config.nodes) add(endpoint);
  }

  Result<SlotMap> ask(const std::vector<net::Endpoint>&, bool troubled) override {
    Error problem = problem_;
    std::int64_t epoch = -1;
    net::Endpoint master;
    Sentinel* witness = nullptr;
    for (std::size_t index = 0; index < sentinels_.size(); ++index) {
      Sentinel& sentinel = sentinels_[index];
      if (!sentinel.link && monotonic_ns() < sentinel.not_before) continue;
      auto word = ask_one(sentinel);
      if (!word) {
        problem = problem_ = word.error();
        if (problem.code == Errc::kClosed) return problem;
        if (problem.code == Errc::kServer) continue;  // it is well and does not know the name
        sentinel.link.reset();
        sentinel.not_before = monotonic_ns() + kAgainAfter;
        continue;
      }
      // One of them leads a failover and knows the new master before the epoch changes for all.
      const bool newer = word->first == epoch && word->second.text() != master_.text();
      if (word->first < epoch || (word->first == epoch && !newer)) continue;
      epoch = word->first;
      master = word->second;
      witness = &sentinel;
    }
    if (witness == nullptr) return problem;
    if (troubled || !(master.text() == master_.text())) {
      if (auto verified = verify(master); !verified) return verified.error();
      master_ = master;
      learn(*witness);
      witness = nullptr;  // learn() may have moved it
    }
    return map_of(master);
  }

  [[nodiscard]] std::vector<int> announcements() const override {
    std::vector<int> fds;
    for (const Sentinel& sentinel : sentinels_) {
      if (sentinel.link && sentinel.announces) fds.push_back(sentinel.link->fd());
    }
    return fds;
  }

 private:
  struct Sentinel {
    net::Endpoint endpoint;
    std::unique_ptr<Link> link;
    bool announces = false;
    Nanos not_before = 0;
  };

  void add(const net::Endpoint& endpoint) {
    const auto same = [&](const Sentinel& known) {
      return known.endpoint.text() == endpoint.text();
    };
    if (sentinels_.size() >= kSentinelsMax || std::ranges::any_of(sentinels_, same)) return;
    sentinels_.push_back({.endpoint = endpoint, .link = nullptr});
  }

  Result<resp::Value> call(Sentinel& sentinel, std::string_view what) {
    const std::array<std::string_view, 3> words{"SENTINEL", what, config_.sentinel_master};
    auto reply = sentinel.link->call(words, monotonic_ns() + kLimit);
    if (reply) return reply;
    const Error& error = reply.error();
    const bool says_who = error.context.starts_with(sentinel.endpoint.text());
    return Error{error.code,
                 says_who ? error.context : sentinel.endpoint.text() + ": " + error.context};
  }

  // The epoch of its configuration, and the master.
  Result<std::pair<std::int64_t, net::Endpoint>> ask_one(Sentinel& sentinel) {
    if (!sentinel.link) {
      auto link =
          Link::open(sentinel_context_, sentinel.endpoint, greeting_, monotonic_ns() + kLimit);
      if (!link) return link.error();
      sentinel.link = std::move(*link);
      auto announces = listen(*sentinel.link);
      if (!announces) return announces.error();
      sentinel.announces = *announces;
    }
    const auto row = call(sentinel, "MASTER");
    if (!row) return row.error();
    const resp::Value* epoch = row->find("config-epoch");
    const auto number = epoch == nullptr ? std::nullopt : epoch->as_integer();
    const auto address = call(sentinel, "GET-MASTER-ADDR-BY-NAME");
    if (!address) return address.error();
    auto endpoint = parse_master_address(*address);
    if (!endpoint) return endpoint.error();
    return std::pair(number.value_or(0), std::move(*endpoint));
  }

  // Whether it will announce failovers. Only with RESP3 may questions follow on one connection, and
  // a user of ours may not be allowed to listen.
  static Result<bool> listen(Link& link) {
    if (link.info().protocol < 3) return false;
    static constexpr std::array<std::string_view, 3> kListen{"SUBSCRIBE", "+switch-master",
                                                             "+promoted-slave"};
    static constexpr std::array<std::string_view, 1> kPing{"PING"};
    const Nanos deadline = monotonic_ns() + kLimit;
    if (const Outcome sent = link.send(encode_words(kListen) + encode_words(kPing), deadline);
        !sent) {
      return sent.error();
    }
    bool refused = false;
    bool listening = false;
    while (monotonic_ns() < deadline) {  // it may announce without end
      const auto reply = link.receive(deadline);
      if (!reply) return reply.error();
      if (!*reply) break;
      listening = listening || (*reply)->is_push();
      if ((*reply)->is_push()) continue;
      if (!(*reply)->is_error() || refused || listening) return !refused;  // PING is answered
      refused = true;
    }
    return Error{Errc::kTimeout, link.endpoint().text() + ": no answer in time"};
  }

  Outcome verify(const net::Endpoint& master) {
    auto link = Link::open(context_, master, config_, monotonic_ns() + kLimit);
    if (!link) return link.error();
    static constexpr std::array<std::string_view, 1> kRole{"ROLE"};
    const auto reply = (*link)->call(kRole, monotonic_ns() + kLimit);
    // A user that may not ask: then the Sentinels' word has to do, and READONLY guards the rest.
    if (!reply && reply.error().code == Errc::kServer) return Done{};
    if (!reply) return reply.error();
    const auto role = parse_role(*reply);
    if (!role) return role.error();
    if (role->kind == RoleKind::kMaster) return Done{};
    return Error{Errc::kServer, master.text() + ": not yet, or no longer, the master"};
  }

  // The other Sentinels: ours may all be gone one day.
  void learn(Sentinel& witness) {
    const auto reply = call(witness, "SENTINELS");
    if (!reply) return;
    const auto others = parse_sentinels(*reply);
    if (!others) return;
    for (const net::Endpoint& endpoint : *others) add(endpoint);
  }

  Result<SlotMap> map_of(const net::Endpoint& master) {
    SlotRange all{.first = 0, .last = kSlotCount - 1, .primary = {master, {}}, .replicas = {}};
    if (config_.read_from != ReadFrom::kPrimary) {
      for (Sentinel& sentinel : sentinels_) {
        if (!sentinel.link) continue;
        const auto reply = call(sentinel, "REPLICAS");
        if (!reply) continue;
        const auto replicas = parse_replicas(*reply);
        if (!replicas) continue;
        for (const net::Endpoint& endpoint : *replicas) all.replicas.push_back({endpoint, {}});
        break;
      }
    }
    return SlotMap::build({std::move(all)});
  }

  const Config& config_;
  const LinkContext context_;
  LinkContext sentinel_context_;
  Greeting greeting_;
  std::vector<Sentinel> sentinels_;
  net::Endpoint master_;  // that was verified last
  Error problem_{Errc::kConnect, "no Sentinel answers"};
};

}  // namespace

std::unique_ptr<TopologySource> sentinel_source(const Config& config, const LinkContext& context) {
  return std::make_unique<SentinelSource>(config, context);
}

}  // namespace kvferry::redis
