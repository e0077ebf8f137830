#include "redis/presence/view.hpp"

#include <poll.h>

#include <algorithm>
#include <exception>
#include <random>
#include <utility>

#include "redis/server_error.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kConnectLimit = 500 * kMilli;  // other nodes are not listened to meanwhile
constexpr Nanos kSendLimit = 1 * kSecond;
constexpr Nanos kSilenceMax = 2 * kSecond;
constexpr Nanos kPauseMin = 20 * kMilli;  // before dialling again; it doubles
constexpr Nanos kPauseMax = 500 * kMilli;
constexpr Nanos kRefusedPause = 60 * kSecond;  // by a server that cannot, or must not, help us
constexpr Nanos kSeatEvery = 1 * kSecond;      // how often a seat that is taken is tried
constexpr Nanos kSteady = 10 * kSecond;        // a connection that lived so long: its end is news
constexpr Nanos kGather = 2 * kMilli;          // announcements of what we write...
constexpr std::uint64_t kMuch = 64 * kKiB;     // ... where so many bytes go out at a time
constexpr int kValuesPerTurn = 256;            // of one node, before the others have theirs

PresenceState::Seed random_seed() {
  std::random_device device;
  const auto word = [&] { return std::uint64_t{device()} << 32 | device(); };
  return {word(), word()};
}

// A server's no to what the view asks, as long as it has not only just begun or lost its friends.
bool is_lasting(const Error& error) {
  return error.code == Errc::kServer && classify(error.context) != ServerErrorKind::kBusy;
}

}  // namespace

Result<std::unique_ptr<PresenceView>> PresenceView::open(PresenceOptions options,
                                                         const Config& config, Router& router,
                                                         const LinkContext& links, LogSink& log) {
  auto wake = EventFd::open();
  if (!wake) return wake.error();
  return std::unique_ptr<PresenceView>(
      new PresenceView(std::move(options), config, router, links, log, std::move(*wake)));
}

PresenceView::PresenceView(PresenceOptions options, const Config& config, Router& router,
                           const LinkContext& links, LogSink& log, EventFd wake)
    : options_(std::move(options)),
      config_(config),
      router_(router),
      links_(links),
      log_(log),
      wake_(std::move(wake)),
      state_(options_.prefix, config.topology == Topology::kCluster,
             PresenceLimits{.keys_max = options_.keys_max}, random_seed()),
      seat_(options_.seat) {}

void PresenceView::start() {
  thread_ = Thread("kvferry-view", [this] { run(); });
}

void PresenceView::stop() {
  thread_.join();
  seat_.let_go();
}

std::string PresenceView::why() const {
  const std::lock_guard lock(why_mutex_);
  return why_;
}

void PresenceView::explain(std::string why) {
  const std::lock_guard lock(why_mutex_);
  why_ = std::move(why);
}

void PresenceView::look_up(std::span<const std::string_view> keys,
                           std::span<Presence> answers) const {
  if (generation_.load(std::memory_order_acquire) == router_.generation()) {
    return state_.look_up(keys, answers);
  }
  std::ranges::fill(answers, Presence::kUnknown);  // nodes came or went: first it must follow
  wake_.signal();
}

void PresenceView::wrote(Batch& batch) {
  const Verb verb = batch.options().verb;
  if (verb != Verb::kSet && verb != Verb::kDelete) return;
  bool is_news = false;
  for (const Command& command : batch.commands()) {
    if (command.stripe != 0 || command.status != Status::kOk) continue;
    is_news = state_.wrote(batch.key(command)) || is_news;
  }
  if (is_news) wake_.signal();
}

// --- The thread ---

void PresenceView::run() noexcept {
  try {
    loop();
  } catch (const std::exception& problem) {
    log_.push(LogLevel::kError, std::string("the presence view failed: ") + problem.what());
  }
  for (Watched& node : nodes_) {
    node.link.reset();  // nobody listens any more
    state_.lost(node.id);
  }
}

void PresenceView::loop() {
  bool gathers = false;
  for (;;) {
    follow_nodes();
    take_seat(monotonic_ns());
    Nanos until = monotonic_ns() + PresenceFeed::kBeat;
    for (Watched& node : nodes_) until = std::min(until, drive(node, monotonic_ns()));
    // While we write large values, each is announced by itself, and a turn for each takes a quarter
    // of the rate on two cores: those of a moment are read, and asked about, together.
    if (gathers && wait_for_stop(kGather)) return;
    if (!wait(until)) return;
    gathers = false;
    bool hurries = false;
    for (Watched& node : nodes_) {
      if (node.link == nullptr) continue;
      gathers |= listen(node) && writes_much(node);
      hurries |= node.has_more || (node.feed != nullptr && !node.feed->settled());
    }
    gathers &= !hurries;
  }
}

bool PresenceView::writes_much(Watched& node) {
  const std::uint64_t sent = node.server->stats().bytes_sent.load(std::memory_order_relaxed);
  return sent - std::exchange(node.sent, sent) >= kMuch;
}

bool PresenceView::wait_for_stop(Nanos time) {
  pollfd stop{.fd = links_.stop.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&stop, 1, static_cast<int>(time / kMilli)) > 0;
}

bool PresenceView::wait(Nanos until) {
  std::vector<pollfd> fds{{.fd = links_.stop.fd(), .events = POLLIN, .revents = 0},
                          {.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
  for (const Watched& node : nodes_) {
    if (node.link != nullptr)
      fds.push_back({.fd = node.link->fd(), .events = POLLIN, .revents = 0});
    if (node.has_more) until = 0;
  }
  const Nanos left = std::max<Nanos>(0, until - monotonic_ns());
  ::poll(fds.data(), fds.size(), static_cast<int>((left + kMilli - 1) / kMilli));
  if (fds[1].revents != 0) wake_.clear();
  return fds[0].revents == 0;
}

void PresenceView::follow_nodes() {
  const std::uint64_t generation = router_.generation();  // before nodes(), which may be newer
  if (generation == generation_.load(std::memory_order_relaxed)) return;
  std::vector<std::shared_ptr<Server>> primaries;
  for (const Router::Node& node : router_.nodes()) {
    if (node.server->role() == NodeRole::kPrimary) primaries.push_back(node.server);
  }
  std::erase_if(nodes_, [&](const Watched& node) {
    if (std::ranges::find(primaries, node.server) != primaries.end()) return false;
    state_.leave(node.id);
    return true;
  });
  for (const auto& server : primaries) {
    if (std::ranges::find(nodes_, server, &Watched::server) != nodes_.end()) continue;
    nodes_.push_back({.server = server, .id = state_.join(), .link = nullptr, .feed = nullptr});
  }
  generation_.store(generation, std::memory_order_release);  // pairs with look_up()
}

void PresenceView::take_seat(Nanos now) {
  if (seat_.taken() || now < seat_at_) return;
  seat_at_ = now + kSeatEvery;
  explain(seat_.take() ? "" : "another process or engine of this host keeps it");
}

void PresenceView::dial(Watched& node, Nanos now) {
  node.pause = std::clamp(2 * node.pause, kPauseMin, kPauseMax);
  node.dial_at = now + node.pause;
  // Only where others got through lately, so that it does not keep us from listening for long.
  if (!node.server->available() || node.server->connections_up() == 0) return;
  node.broken = node.server->stats().connections_broken.load(std::memory_order_relaxed);
  // Far away no greeting is answered in that.
  const Nanos needed = std::max(kConnectLimit, 4 * node.server->round_trip());
  const Nanos limit = std::min(config_.connect_timeout, needed);
  auto link = Link::open(links_, node.server->endpoint(), config_, now + limit);
  if (!link) return part(node, link.error());
  if ((*link)->info().protocol < 3) {
    return part(node, {Errc::kServer, "it has no RESP3, which announcements need"}, kRefusedPause);
  }
  node.link = std::move(*link);
  node.opened_at = monotonic_ns();
  node.feed = std::make_unique<PresenceFeed>(
      state_, node.id, config_.topology == Topology::kCluster,
      std::min(config_.stall_timeout, kSilenceMax), node.opened_at, options_.load_max);
  explain("");
}

bool PresenceView::listen(Watched& node) {
  node.has_more = false;
  for (int count = 0; count < kValuesPerTurn; ++count) {
    const auto value = node.link->receive(0);
    if (!value) {
      part(node, value.error());
      return true;
    }
    if (!*value) return count > 0;
    const Outcome taken = node.feed->receive(**value, monotonic_ns());
    if (!taken) {
      part(node, taken.error(), is_lasting(taken.error()) ? kRefusedPause : 0);
      return true;
    }
  }
  return node.has_more = true;
}

Nanos PresenceView::drive(Watched& node, Nanos now) {
  if (!seat_.taken()) return seat_at_;
  if (node.link == nullptr && now >= node.dial_at) {
    dial(node, now);
    now = monotonic_ns();
  }
  if (node.link == nullptr) return node.dial_at;
  // Behind one name there may be another server now, and then this one hears of nothing.
  if (node.server->stats().connections_broken.load(std::memory_order_relaxed) != node.broken) {
    part(node, {Errc::kConnect, "other connections to it ended"});
    return node.dial_at;
  }
  if (node.feed->silent(now)) {
    part(node, {Errc::kTimeout, "no answer in time"});
    return node.dial_at;
  }
  if (const std::string words = node.feed->next(now); !words.empty()) {
    if (const Outcome sent = node.link->send(words, now + kSendLimit); !sent) {
      part(node, sent.error());
      return node.dial_at;
    }
  }
  tell_load(node);
  return node.feed->wake_at();
}

void PresenceView::tell_load(Watched& node) {
  const PresenceLoad& load = node.feed->load();
  if (load.too_much() == node.too_much) return;
  node.too_much = load.too_much();
  std::string text;
  if (node.too_much) {
    text = std::to_string(load.announced_per_s()) + " changes/s times " +
           std::to_string(load.views()) + " views pass " + std::to_string(options_.load_max) +
           "/s at " + node.server->endpoint().text();
  }
  explain(text);
  if (!node.too_much || std::exchange(told_, true)) return;
  log_.push(options_.optional ? LogLevel::kInfo : LogLevel::kWarning,
            "presence view: off until it is calmer: " + text);
}

void PresenceView::part(Watched& node, const Error& why, Nanos pause_min) {
  const Nanos now = monotonic_ns();
  if (node.link != nullptr && now - node.opened_at > kSteady) {
    node.pause = 0;
    node.problem.clear();
  }
  node.link.reset();
  node.feed.reset();
  node.has_more = node.too_much = false;
  state_.lost(node.id);
  node.dial_at = now + std::max(node.pause, pause_min);
  if (why.code == Errc::kClosed) return;
  const std::string text = node.server->endpoint().text() + ": " + why.context;
  explain(text);
  if (std::exchange(node.problem, why.context) == why.context) return;
  log_.push(pause_min > 0 && !options_.optional ? LogLevel::kWarning : LogLevel::kInfo,
            "presence view: " + text);
}

}  // namespace kvferry::redis
