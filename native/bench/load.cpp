// kvferry-load: the load that memtier_benchmark and redis-benchmark make, for hosts that have
// neither. N blocking threads, one connection each, mix SETs and GETs in a given ratio over a range
// of keys, with a given number of commands in flight.
//
// Commands go out as long as fewer than `--pipeline` are unanswered; else the oldest is waited for.
// That cannot lock up: a server keeps replies in memory and reads on.
//
// Every reply is checked for its form, a missing key is counted, and anything else ends the process
// with code 1 and no figure. Output: one JSON object on stdout.

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/thread.hpp"
#include "bench/channel_open.hpp"
#include "bench/options.hpp"

namespace {

using kvferry::monotonic_ns;
using kvferry::Nanos;
using kvferry::bench::Channel;
using kvferry::bench::die;
using kvferry::bench::open_channel;
using kvferry::bench::Options;

constexpr const char* kManual =
    "kvferry-load [options]\n"
    "  --host H --port P | --unix PATH   the server (127.0.0.1:6379)\n"
    "  --tls             with --tls-ca FILE, else any certificate will do;\n"
    "                    --tls-cert FILE --tls-key FILE, --tls-suites LIST, --tls-read-ahead\n"
    "  --requests N      commands, dealt out evenly to the connections (10000)\n"
    "  --connections N   threads, one connection each (1)\n"
    "  --pipeline N      commands in flight on each connection (1)\n"
    "  --sets N --gets N so many SETs, then so many GETs, and again (1, 1)\n"
    "  --size-bytes N    of a value (4194304)\n"
    "  --key-minimum N --key-maximum N   the range of keys (0, 10000000)\n"
    "  --key-pattern XY  of SETs and of GETs: R random, S sequential, G Gaussian, P a part of the\n"
    "                    range for each connection, sequential (RR)\n"
    "  --key-digits N    pad the number in a key with zeros (0)\n"
    "  --prefix TEXT     of the keys (load:)\n"
    "A password is taken from KVFERRY_RESP_PASSWORD, a user from KVFERRY_RESP_USERNAME.\n";

constexpr std::size_t kValueBytesMax = std::size_t{512} << 20;  // the server's own limit

struct Plan {
  std::size_t requests, connections, pipeline, size_bytes, key_min, key_max, digits;
  std::array<std::size_t, 2> ratio;   // SETs, GETs
  std::string pattern, prefix, body;  // body: what every SET stores, and the end of the command

  explicit Plan(const Options& o)
      : requests(o.number("--requests")),
        connections(o.number("--connections")),
        pipeline(o.number("--pipeline")),
        size_bytes(o.number("--size-bytes")),
        key_min(o.number("--key-minimum")),
        key_max(o.number("--key-maximum")),
        digits(o.number("--key-digits")),
        ratio{o.number("--sets"), o.number("--gets")},
        pattern(o.text("--key-pattern")),
        prefix(o.text("--prefix")),
        body(size_bytes, '\0') {
    if (requests == 0 || connections == 0 || pipeline == 0 || size_bytes == 0)
      die("a count is zero");
    if (ratio[0] + ratio[1] == 0) die("--sets and --gets are both zero");
    if (key_min > key_max) die("--key-minimum is above --key-maximum");
    if (pattern.size() != 2 || pattern.find_first_not_of("RSGP") != std::string::npos)
      die("--key-pattern wants two letters of R, S, G and P");
    std::mt19937_64 random(1);
    for (char& c : body) c = static_cast<char>(random());
    body += "\r\n";
  }
};

// Of one kind of command, on one connection.
struct Tally {
  std::size_t count = 0, misses = 0, bytes = 0;
  std::vector<Nanos> latencies;
};

// Draws the keys of one connection for one kind of command.
class Keys {
 public:
  Keys(const Plan& plan, std::size_t index, std::size_t kind)
      : plan_(plan), pattern_(plan.pattern[kind]), low_(plan.key_min), high_(plan.key_max) {
    random_.seed(index * 2 + kind + 1);
    if (pattern_ == 'P') {
      const std::size_t part = (high_ - low_) / plan.connections + 1;
      low_ = std::min(high_, low_ + part * index);
      high_ = std::min(high_, low_ + part - 1);
    }
    next_ = low_;
  }

  std::string draw() {
    std::string number = std::to_string(index());
    if (number.size() < plan_.digits) number.insert(0, plan_.digits - number.size(), '0');
    return plan_.prefix + number;
  }

 private:
  std::size_t index() {
    if (pattern_ == 'R') return std::uniform_int_distribution(low_, high_)(random_);
    if (pattern_ == 'G') {
      const double middle = static_cast<double>(low_) / 2 + static_cast<double>(high_) / 2;
      const double spread = static_cast<double>(high_ - low_ + 1) / 6;  // as memtier has it
      const double drawn = std::normal_distribution(middle, spread)(random_);
      return static_cast<std::size_t>(
          std::llround(std::clamp(drawn, static_cast<double>(low_), static_cast<double>(high_))));
    }
    const std::size_t at = next_;
    next_ = at == high_ ? low_ : at + 1;
    return at;
  }

  const Plan& plan_;
  char pattern_;
  std::size_t low_, high_, next_;
  std::mt19937_64 random_;
};

// Of the value that a line like "$4194304" announces. Values are of anybody, and of any length.
std::size_t length_of(const std::string& line) {
  std::size_t size = 0;
  const char* end = line.data() + line.size();
  const auto [rest, error] = std::from_chars(line.data() + 1, end, size);
  if (line.size() < 2 || line[0] != '$' || error != std::errc() || rest != end ||
      size > kValueBytesMax) {
    die("unexpected reply: " + line);
  }
  return size;
}

// Reads replies: lines out of a small buffer, what is long past it.
class Replies {
 public:
  explicit Replies(Channel& channel) : channel_(channel) {}

  std::string line() {
    std::string text;
    for (;;) {
      if (at_ == end_) fill();
      text += buffer_[at_++];
      if (text.size() > 200) die("unexpected reply: " + text.substr(0, 60));
      if (text.ends_with("\r\n")) return text.substr(0, text.size() - 2);
    }
  }

  void skip(std::size_t size, std::string& into) {
    const std::size_t here = std::min(size, end_ - at_);
    at_ += here;
    if (into.size() < size) into.resize(size);
    for (std::size_t got = here; got < size;) got += channel_.receive(&into[got], size - got);
  }

 private:
  void fill() {
    at_ = 0;
    end_ = channel_.receive(buffer_.data(), buffer_.size());
  }

  Channel& channel_;
  std::array<char, 4096> buffer_;
  std::size_t at_ = 0, end_ = 0;
};

// One connection's share of the load.
class Client {
 public:
  Client(const Plan& plan, std::size_t index, std::unique_ptr<Channel> channel)
      : plan_(plan),
        channel_(std::move(channel)),
        replies_(*channel_),
        keys_{Keys(plan, index, 0), Keys(plan, index, 1)},
        requests_(plan.requests / plan.connections +
                  (index < plan.requests % plan.connections ? 1 : 0)) {}

  void run() {
    for (std::size_t sent = 0; sent < requests_ || !waiting_.empty();) {
      if (sent < requests_ && waiting_.size() < plan_.pipeline) {
        send(sent++ % (plan_.ratio[0] + plan_.ratio[1]) < plan_.ratio[0] ? 0 : 1);
      } else {
        take();
      }
    }
  }

  [[nodiscard]] const Tally& tally(std::size_t kind) const { return tallies_[kind]; }

 private:
  struct Waiting {
    std::size_t kind;
    Nanos start;
  };

  void send(std::size_t kind) {
    const std::string key = keys_[kind].draw();
    std::string text = kind == 0 ? "*3\r\n$3\r\nSET\r\n$" : "*2\r\n$3\r\nGET\r\n$";
    text.append(std::to_string(key.size())).append("\r\n").append(key).append("\r\n");
    waiting_.push_back({kind, monotonic_ns()});
    if (kind == 0) text.append("$").append(std::to_string(plan_.size_bytes)).append("\r\n");
    channel_->send_all(text);
    if (kind == 0) channel_->send_all(plan_.body);
  }

  void take() {
    const Waiting oldest = waiting_.front();
    waiting_.pop_front();
    Tally& tally = tallies_[oldest.kind];
    const std::string line = replies_.line();
    if (oldest.kind == 0) {
      if (line != "+OK") die("unexpected reply: " + line);
      tally.bytes += plan_.size_bytes;
    } else if (line == "$-1" || line == "_") {
      ++tally.misses;
    } else {
      const std::size_t size = length_of(line);
      replies_.skip(size + 2, value_);
      tally.bytes += size;
    }
    ++tally.count;
    tally.latencies.push_back(monotonic_ns() - oldest.start);
  }

  const Plan& plan_;
  std::unique_ptr<Channel> channel_;
  Replies replies_;
  std::array<Keys, 2> keys_;
  std::size_t requests_;
  std::deque<Waiting> waiting_;
  std::array<Tally, 2> tallies_;
  std::string value_;
};

std::string report(const std::vector<std::unique_ptr<Client>>& clients, std::size_t kind) {
  Tally all;
  for (const auto& client : clients) {
    const Tally& one = client->tally(kind);
    all.count += one.count;
    all.misses += one.misses;
    all.bytes += one.bytes;
    all.latencies.insert(all.latencies.end(), one.latencies.begin(), one.latencies.end());
  }
  std::sort(all.latencies.begin(), all.latencies.end());
  const auto percentile_ms = [&](std::size_t percent) {
    if (all.latencies.empty()) return 0.0;
    return static_cast<double>(all.latencies[(all.latencies.size() - 1) * percent / 100]) / 1e6;
  };
  char text[200];
  std::snprintf(text, sizeof text,
                "{\"count\":%zu,\"misses\":%zu,\"bytes\":%zu,\"p50_ms\":%.4f,\"p99_ms\":%.4f}",
                all.count, all.misses, all.bytes, percentile_ms(50), percentile_ms(99));
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options(argc, argv, kManual,
                        {{"--host", "127.0.0.1"},
                         {"--port", "6379"},
                         {"--unix", ""},
                         {"--requests", "10000"},
                         {"--connections", "1"},
                         {"--pipeline", "1"},
                         {"--sets", "1"},
                         {"--gets", "1"},
                         {"--size-bytes", "4194304"},
                         {"--key-minimum", "0"},
                         {"--key-maximum", "10000000"},
                         {"--key-pattern", "RR"},
                         {"--key-digits", "0"},
                         {"--prefix", "load:"},
                         {"--tls-ca", ""},
                         {"--tls-cert", ""},
                         {"--tls-key", ""},
                         {"--tls-suites",
                          "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                          "TLS_CHACHA20_POLY1305_SHA256"}},
                        {"--tls", "--tls-read-ahead"});
  const Plan plan(options);
  kvferry::net::Endpoint where{
      .host = options.text("--host"), .port = 0, .unix_path = options.text("--unix")};
  where.port = static_cast<std::uint16_t>(options.number("--port"));
  std::vector<std::unique_ptr<Client>> clients;
  for (std::size_t i = 0; i < plan.connections; ++i) {
    clients.push_back(std::make_unique<Client>(plan, i, open_channel(options, where)));
  }
  const Nanos start = monotonic_ns();
  std::vector<kvferry::Thread> threads;
  for (std::size_t i = 0; i < plan.connections; ++i) {
    threads.emplace_back("load-" + std::to_string(i), [&, i] { clients[i]->run(); });
  }
  for (auto& thread : threads) thread.join();
  const double wall_s = static_cast<double>(monotonic_ns() - start) / 1e9;
  std::printf("{\"wall_s\":%.6f,\"set\":%s,\"get\":%s}\n", wall_s, report(clients, 0).c_str(),
              report(clients, 1).c_str());
  return 0;
}
