#include "redis/same_host.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <optional>
#include <utility>

#include "redis/server_error.hpp"

namespace kvferry::redis {
namespace {

constexpr Nanos kAwaitUp = 20 * kMilli;  // before the first connections are up; it doubles
constexpr Nanos kAwaitUpMax = 1 * kSecond;
constexpr Nanos kPauseMin = 100 * kMilli;  // between two questions; it doubles with each
constexpr Nanos kPauseMax = 30 * kSecond;
constexpr Nanos kSteady = 10 * kSecond;  // a socket that was good for so long did not fail at once

std::string_view word_after(std::string_view text, std::string_view name, char end) {
  for (std::size_t at = 0; (at = text.find(name, at)) != std::string_view::npos; ++at) {
    if (at > 0 && text[at - 1] != '\n' && text[at - 1] != ' ') continue;
    const std::string_view rest = text.substr(at + name.size());
    return rest.substr(0, std::min(rest.find(end), rest.find_first_of("\r\n")));
  }
  return {};
}

}  // namespace

bool asks_for_socket(const Config& config) {
  return config.same_host != SameHostWay::kTcp && config.topology == Topology::kStandalone &&
         net::is_loopback(config.endpoint);
}

std::string_view seen_address(const resp::Value& client) {
  return word_after(client.text, "addr=", ' ');
}

Result<LocalServer> parse_local_server(const resp::Value& info, const resp::Value& config) {
  LocalServer found;
  found.run_id = word_after(info.text, "run_id:", '\r');
  const std::string_view process = word_after(info.text, "process_id:", '\r');
  std::from_chars(process.data(), process.data() + process.size(), found.process);
  if (found.run_id.empty() || found.process <= 0) {
    return Error{Errc::kServer, "INFO server names no run_id and process_id"};
  }
  const resp::Value* path = config.find("unixsocket");
  if (path == nullptr || !path->is_text() || path->text.empty()) {
    return Error{Errc::kServer, "the server has no Unix socket"};
  }
  if (!path->text.starts_with('/') || path->text.find('\0') != std::string::npos) {
    return Error{Errc::kServer, "the path of the server's Unix socket is not absolute"};
  }
  found.unix_path = path->text;
  return found;
}

Result<std::unique_ptr<SameHost>> SameHost::open(const Config& config,
                                                 std::shared_ptr<Server> server,
                                                 const LinkContext& links, LogSink& log) {
  auto wake = EventFd::open();
  if (!wake) return wake.error();
  return std::unique_ptr<SameHost>(
      new SameHost(config, std::move(server), links, log, std::move(*wake)));
}

SameHost::SameHost(const Config& config, std::shared_ptr<Server> server, const LinkContext& links,
                   LogSink& log, EventFd wake)
    : config_(config),
      server_(std::move(server)),
      links_(links),
      log_(log),
      wake_(std::move(wake)),
      text_("TCP: the server was not asked yet") {}

void SameHost::start() {
  thread_ = Thread("kvferry-host", [this] { run(); });
}

void SameHost::stop() { thread_.join(); }

void SameHost::suspect() {
  {
    const std::lock_guard lock(mutex_);
    suspected_ = true;
  }
  wake_.signal();
}

void SameHost::request(net::Resolver::Callback callback) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(callback));
  }
  wake_.signal();
}

std::string SameHost::text() const {
  const std::lock_guard lock(mutex_);
  return text_;
}

// --- The thread ---

void SameHost::run() noexcept {
  try {
    loop();
  } catch (const std::exception& problem) {
    log_.push(LogLevel::kError, std::string("looking for a Unix socket failed: ") + problem.what());
    if (config_.same_host == SameHostWay::kUnix) server_->fail_for_good("the asking thread failed");
  }
}

void SameHost::loop() {
  if (config_.same_host == SameHostWay::kUnix) {
    while (wait(kNever)) answer_requests();
    return;
  }
  Nanos up_pause = kAwaitUp;
  Nanos pause = kPauseMin;
  Nanos asked_at = -kPauseMax;
  Nanos due = 0;
  bool good = false;
  while (wait(due)) {
    bool suspected = false;
    {
      const std::lock_guard lock(mutex_);
      suspected = std::exchange(suspected_, false);
    }
    const Nanos now = monotonic_ns();
    if (suspected && good && now - asked_at > kSteady) pause = kPauseMin;
    if (suspected) due = std::min(due, asked_at + pause);
    if (now < due) continue;
    if (server_->connections_up() == 0) {  // whoever dials there finds out whether it is back
      due = now + std::exchange(up_pause, std::min(2 * up_pause, kAwaitUpMax));
      continue;
    }
    up_pause = kAwaitUp;
    bool lasting = false;
    const auto address = ask(lasting);
    good = address.has_value();
    if (address) server_->set_shortcut(*address);
    asked_at = monotonic_ns();
    due = good || lasting ? kNever : asked_at + pause;
    pause = std::min(2 * pause, kPauseMax);
  }
}

void SameHost::answer_requests() {
  std::vector<net::Resolver::Callback> requests;
  {
    const std::lock_guard lock(mutex_);
    requests = std::exchange(requests_, {});
  }
  if (requests.empty()) return;
  bool lasting = false;
  const auto address = ask(lasting);
  const auto answer = address ? Result<std::vector<net::Address>>(std::vector{*address})
                              : Error{address.error().code,
                                      "same_host='unix' is set, but " + address.error().context};
  for (const auto& callback : requests) callback(answer);
}

Result<net::Address> SameHost::ask(bool& lasting) {
  const Nanos deadline = monotonic_ns() + config_.connect_timeout;
  const auto said = ask_server(deadline, lasting);
  if (!said) {
    note("TCP: " + said.error().context, LogLevel::kDebug);
    return said.error();
  }
  net::Endpoint endpoint;
  endpoint.unix_path = said->unix_path;
  endpoint.listener = said->process;
  if (const Outcome good = check_socket(*said, endpoint, deadline); !good) {
    note("TCP: " + good.error().context, LogLevel::kInfo);
    return good.error();
  }
  auto addresses = net::resolve(endpoint);
  if (!addresses) return addresses.error();
  note(endpoint.text(), LogLevel::kInfo);
  return addresses->front();
}

Result<LocalServer> SameHost::ask_server(Nanos deadline, bool& lasting) {
  auto link = Link::open(links(), config_.endpoint, greeting(), deadline);
  if (!link) return link.error();
  constexpr std::array<std::string_view, 2> kClient{"CLIENT", "INFO"};
  constexpr std::array<std::string_view, 2> kServer{"INFO", "server"};
  constexpr std::array<std::string_view, 3> kConfig{"CONFIG", "GET", "unixsocket"};
  // One after the other: the first no is the last question, because servers note refusals.
  const auto ask = [&](std::span<const std::string_view> words) -> Result<resp::Value> {
    auto reply = (*link)->call(words, deadline);
    lasting = reply || reply.error().code == Errc::kServer;  // until it starts anew
    if (!lasting || reply) return reply;
    std::string asked;
    for (const std::string_view word : words) asked.append(word).append(" ");
    asked.back() = ':';
    return Error{Errc::kServer,
                 "the server may not be asked (" + asked + " " + reply.error().context + ")"};
  };
  const auto client = ask(kClient);
  if (!client) return client.error();
  const auto own = net::local_address((*link)->fd());
  if (!own || own->text() != seen_address(*client)) {
    return Error{Errc::kConnect,
                 "the server sees our connection come from elsewhere: its address "
                 "leads through a proxy or another network"};
  }
  const auto info = ask(kServer);
  if (!info) return info.error();
  const auto config = ask(kConfig);
  if (!config) return config.error();
  auto said = parse_local_server(*info, *config);
  lasting = !said;
  return said;
}

Outcome SameHost::check_socket(const LocalServer& said, const net::Endpoint& endpoint,
                               Nanos deadline) {
  auto link = Link::open(links(), endpoint, greeting(), deadline);
  if (!link) return link.error();
  constexpr std::array<std::string_view, 2> kInfo{"INFO", "server"};
  const auto info = (*link)->call(kInfo, deadline);
  if (!info) return info.error();
  if (!info->is_text() || word_after(info->text, "run_id:", '\r') != said.run_id) {
    return Error{Errc::kConnect, endpoint.text() + ": another server answers there"};
  }
  return Done{};
}

void SameHost::note(std::string text, LogLevel level) {
  {
    const std::lock_guard lock(mutex_);
    if (text == text_) return;
    text_ = text;
  }
  log_.push(level, config_.endpoint.text() + " is used over " + text);
}

bool SameHost::wait(Nanos until) {
  std::array<pollfd, 2> fds{pollfd{.fd = links_.stop.fd(), .events = POLLIN, .revents = 0},
                            pollfd{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
  constexpr Nanos kLongest = 60 * kSecond;
  const Nanos patience = std::clamp<Nanos>(until - monotonic_ns(), 0, kLongest);
  ::poll(fds.data(), fds.size(), static_cast<int>((patience + kMilli - 1) / kMilli));
  if (fds[1].revents != 0) wake_.clear();
  return fds[0].revents == 0;
}

// What a provider gave last is good here, too; it need not be asked again.
LinkContext SameHost::links() const {
  const bool known = links_.credentials != nullptr && links_.credentials->version() > 0;
  return {links_.transport, links_.resolver, known ? nullptr : links_.credentials, links_.stop};
}

Greeting SameHost::greeting() const {
  Greeting greeting = config_;
  if (links_.credentials != nullptr && links_.credentials->version() > 0) {
    const Credentials current = links_.credentials->current();
    greeting.username = current.username;
    greeting.password = current.password;
  }
  return greeting;
}

}  // namespace kvferry::redis
