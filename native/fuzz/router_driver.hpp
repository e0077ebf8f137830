#pragma once
// RouterDriver: a Router without workers, whose nodes' queues a test empties by hand.
//
// It stands for everything around the router: it counts suspicions, hands commands on and finishes
// batches as a client does. Threads: those of the router; the driver itself has none.

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/test_names.hpp"
#include "redis/router.hpp"

namespace kvferry::redis {

// "one:1" or "one:1/zone".
inline Node scripted_node(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::size_t slash = std::min(text.find('/', colon), text.size());
  const int port = std::stoi(text.substr(colon + 1, slash - colon - 1));
  return {.endpoint = {text.substr(0, colon), static_cast<std::uint16_t>(port), {}},
          .zone = slash == text.size() ? "" : text.substr(slash + 1)};
}

// A map of "first-last primary replica...", for example {"0-5460 one:1", "5461-16383 two:1 a:2"}.
inline SlotMap scripted_map(const std::vector<std::string>& lines) {
  std::vector<SlotRange> ranges;
  for (const std::string& line : lines) {
    std::istringstream words(line);
    SlotRange range;
    char dash = '-';
    std::string word;
    words >> range.first >> dash >> range.last >> word;
    range.primary = scripted_node(word);
    while (words >> word) range.replicas.push_back(scripted_node(word));
    ranges.push_back(std::move(range));
  }
  auto map = SlotMap::build(std::move(ranges));
  if (!map) throw std::logic_error(map.error().context);
  return std::move(*map);
}

class RouterDriver final : public Dispatcher {
 public:
  RouterDriver() : RouterDriver(cluster()) {}
  explicit RouterDriver(Config config)
      : config_(std::move(config)), router_(config_, log_, *this) {}

  static Config cluster(ReadFrom read_from = ReadFrom::kPrimary) {
    Config config;
    config.topology = Topology::kCluster;
    config.endpoint = {"seed", 1, {}};
    config.read_from = read_from;
    return config;
  }

  [[nodiscard]] Router& router() noexcept { return router_; }
  [[nodiscard]] LogSink& log() noexcept { return log_; }
  [[nodiscard]] const Config& config() const noexcept { return config_; }
  [[nodiscard]] int suspicions() const noexcept { return suspicions_.load(); }
  [[nodiscard]] int wake_ups() const noexcept { return wake_ups_.load(); }

  // A new map.
  void apply(const std::vector<std::string>& lines, Nanos now = 0) {
    const Outcome outcome = router_.apply(scripted_map(lines), now);
    if (!outcome) throw std::logic_error(outcome.error().context);
  }

  std::shared_ptr<Batch> batch(Verb verb, const std::vector<std::string>& keys,
                               Nanos deadline = kNever) {
    auto made = std::make_shared<Batch>(Batch::Options{.verb = verb, .deadline = deadline});
    for (const std::string& key : keys) made->add(key, {});
    running_.push_back(made);  // as a client does, until the end of the test
    return made;
  }
  std::shared_ptr<Batch> submit(Verb verb, const std::vector<std::string>& keys,
                                Nanos deadline = kNever) {
    auto made = batch(verb, keys, deadline);
    if (!router_.submit(made)) throw std::logic_error("the router refused the batch");
    return made;
  }

  // Takes what waits, as connections would: "one:1=a b two:1=c", the nodes in order of their names.
  std::string take() {
    held_.clear();
    std::map<std::string, std::string> taken;
    for (const Router::Node& node : router_.nodes()) {
      std::string& keys = taken[name_of(*node.server)];
      for (const Lane lane : {Lane::kSmall, Lane::kRead, Lane::kWrite}) {
        while (const Work work = node.server->queue().pull(lane)) {
          const std::string key(work.batch->key(*work.command));
          keys += (keys.empty() ? "" : " ") + key;
          held_[key] = {node.server, work};
        }
      }
    }
    std::string text;
    for (const auto& [name, keys] : taken) {
      if (!keys.empty()) text += (text.empty() ? "" : " ") + name + "=" + keys;
    }
    return text;
  }
  // What take() took: the command and the node that had it.
  [[nodiscard]] Work work(const std::string& key) { return held_.at(key).second; }
  [[nodiscard]] Server& holder(const std::string& key) { return *held_.at(key).first; }
  // Its node answered it with `status`, or with a redirect.
  void settle(const std::string& key, Status status) { holder(key).settle(work(key), status, {}); }
  void redirect(const std::string& key, std::string_view answer, Nanos now = 0) {
    router_.redirected(holder(key), work(key), answer, now);
  }

  [[nodiscard]] std::shared_ptr<Server> node(const std::string& name) {
    for (const Router::Node& node : router_.nodes()) {
      if (name_of(*node.server) == name) return node.server;
    }
    throw std::logic_error("no node " + name);
  }
  // "one:1 two:1": all nodes that there are.
  [[nodiscard]] std::string nodes() {
    std::string text;
    for (const Router::Node& node : router_.nodes()) {
      text += (text.empty() ? "" : " ") + name_of(*node.server);
    }
    return text;
  }
  // A connection for values came up, or could not.
  void up(const std::string& name) { node(name)->on_up(true, {}); }
  void down(const std::string& name) { node(name)->on_dial_failed({Errc::kTimeout, "no answer"}); }

  static std::string name_of(const Server& server) {
    return server.endpoint().text() + (server.role() == NodeRole::kReplica ? "(replica)" : "");
  }

  void finished(Batch& batch) override { batch.finish(); }
  void corrupt(Batch&, const Command&) override {}
  void wake_workers() override { wake_ups_.fetch_add(1); }
  void wake(std::size_t, const AskedNode&) override {}
  void route(Work work) override { router_.route(work); }
  void redirected(AskedNode& from, Work work, std::string_view answer) override {
    router_.redirected(from, work, answer, 0);
  }
  void suspect() override { suspicions_.fetch_add(1); }

 private:
  const Config config_;
  LogSink log_;
  std::atomic<int> suspicions_{0};
  std::atomic<int> wake_ups_{0};
  std::vector<std::shared_ptr<Batch>> running_;
  std::map<std::string, std::pair<std::shared_ptr<Server>, Work>> held_;
  Router router_;
};

// "OK MISS PENDING": the outcome of each command.
inline std::string statuses(Batch& batch) {
  std::string text;
  for (const Command& command : batch.commands()) {
    const bool pending = command.status == Status::kPending;
    text += (text.empty() ? "" : " ") + (pending ? "PENDING" : std::string(name(command.status)));
  }
  return text;
}

}  // namespace kvferry::redis
