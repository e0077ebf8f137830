// kvferry-floor: how fast could any client be? N blocking threads, one connection each, send a
// pre-built command and receive exactly the bytes of its reply. Nothing but socket calls (with TLS:
// OpenSSL's) lies between the clock reads, so a client that comes near this has nothing left to
// give.
//
// One round is `--ops` commands, pulled by the threads from one counter, one command in flight per
// connection. In a cluster the connections are dealt out to its shards, each with a counter of its
// own over the keys that live there. Buffers are page-aligned, prefaulted and huge where the host
// allows. By default there is one per thread (it stays in cache: the cheapest floor); with as many
// as the batch has chunks, the cache footprint is that of a real client.
//
// Every reply is checked for its header, length and end; anything else ends the process with
// code 1 and no figure. Output: one JSON object per round, on stdout.

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/thread.hpp"
#include "bench/channel_open.hpp"
#include "bench/options.hpp"
#include "bench/shards.hpp"

namespace {

using kvferry::monotonic_ns;
using kvferry::Nanos;
using kvferry::bench::Channel;
using kvferry::bench::die;
using kvferry::bench::die_errno;
using kvferry::bench::open_channel;
using kvferry::bench::Options;
using kvferry::bench::Shards;

constexpr const char* kManual =
    "kvferry-floor --op get|set --size-bytes N [options]\n"
    "  --host H --port P | --unix PATH   the server (127.0.0.1:6379)\n"
    "  --cluster         it is a node of a cluster: use all shards\n"
    "  --tls             with --tls-ca FILE, else any certificate will do;\n"
    "                    --tls-cert FILE --tls-key FILE, --tls-suites LIST, --tls-read-ahead\n"
    "  --connections N   threads, one connection each (1)\n"
    "  --ops N           commands per round, all connections together (64)\n"
    "  --keys K          distinct keys (as --ops)\n"
    "  --buffers B       distinct buffers, all threads together (one per thread)\n"
    "  --warmup N        commands before the first round (as --ops)\n"
    "  --rewarm N        commands before every round, for connections that were idle (0)\n"
    "  --rounds R        measured rounds (1)\n"
    "  --prefix TEXT     of the keys, which end in ten digits (floor:)\n"
    "  --existing        GET what is there; without it the keys are written first\n"
    "  --waitall         receive with MSG_WAITALL\n"
    "  --stream          use the client's streams instead of blocking calls\n"
    "  --interactive     one round per line on stdin, until it ends\n"
    "A password is taken from KVFERRY_RESP_PASSWORD, a user from KVFERRY_RESP_USERNAME.\n";

constexpr std::size_t kPage = 4096;
constexpr std::size_t kKeyDigits = 10;

struct Plan {
  bool set;
  bool waitall;
  std::size_t size_bytes, connections, ops, keys, buffers, rounds;
  std::string prefix;
  std::string get_head;  // of the request, up to the key
  std::string set_head;  // of the request, up to the payload; its key is at set_key_at
  std::size_t set_key_at;
  std::string reply_head;  // what a GET reply starts with

  explicit Plan(const Options& o)
      : set(o.text("--op") == "set"),
        waitall(o.has("--waitall")),
        size_bytes(o.number("--size-bytes")),
        connections(o.number("--connections")),
        ops(o.number("--ops")),
        keys(o.text("--keys").empty() ? ops : o.number("--keys")),
        buffers(o.text("--buffers").empty() ? connections : o.number("--buffers")),
        rounds(o.number("--rounds")),
        prefix(o.text("--prefix")) {
    if (!set && o.text("--op") != "get") die("--op wants get or set");
    if (size_bytes == 0 || connections == 0 || ops == 0 || keys == 0) die("a count is zero");
    buffers = std::max(buffers, connections);
    const std::string key_len =
        "\r\n$" + std::to_string(prefix.size() + kKeyDigits) + "\r\n" + prefix;
    const std::string size = std::string("$") + std::to_string(size_bytes) + "\r\n";
    get_head = "*2\r\n$3\r\nGET" + key_len;
    set_head = "*3\r\n$3\r\nSET" + key_len;
    set_key_at = set_head.size();
    set_head += std::string(kKeyDigits, '0') + "\r\n" + size;
    reply_head = size;
  }
};

void write_key(char* at, std::size_t index) {
  for (std::size_t i = kKeyDigits; i-- > 0; index /= 10) {
    at[i] = static_cast<char>('0' + index % 10);
  }
}

// All buffers as one mapping. The payload of each starts on a page; the RESP header ends there.
class Buffers {
 public:
  explicit Buffers(const Plan& plan)
      : stride_((plan.size_bytes + 2 * kPage - 1) / kPage * kPage + kPage) {
    const std::size_t total = stride_ * plan.buffers;
    void* map = ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) die_errno("mmap");
    ::madvise(map, total, MADV_HUGEPAGE);
    base_ = static_cast<char*>(map);
    std::uint64_t state = 0x9E3779B97F4A7C15;  // splitmix64: incompressible and quick
    for (std::size_t at = 0; at + 8 <= total; at += 8) {
      std::uint64_t z = state += 0x9E3779B97F4A7C15;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
      z ^= z >> 31;
      std::memcpy(base_ + at, &z, 8);
    }
  }
  [[nodiscard]] char* payload(std::size_t index) const { return base_ + index * stride_ + kPage; }

 private:
  std::size_t stride_;
  char* base_;
};

class Floor {
 public:
  Floor(const Options& options, const Plan& plan)
      : options_(options),
        plan_(plan),
        shards_(options),
        buffers_(plan),
        queues_(shards_.count()),
        latencies_(plan.connections) {
    if (plan.connections < shards_.count()) die("a shard would have no connection");
    pthread_barrier_init(&barrier_, nullptr, static_cast<unsigned>(plan.connections + 1));
    for (std::size_t t = 0; t < plan.connections; ++t) {
      threads_.emplace_back("floor-" + std::to_string(t), [this, t] { work(t); });
    }
    wait();  // until every thread is connected
  }

  // One round of `ops` commands that start together. Returns the JSON text of its figures.
  std::string round(std::size_t ops, bool set) {
    set_ = set;
    own_buffers_ = ops > plan_.buffers;  // with a buffer for each command there is no need
    std::string key = plan_.prefix + std::string(kKeyDigits, '0');
    for (Queue& queue : queues_) {
      queue.next = 0;
      queue.ops.clear();
    }
    for (std::size_t op = 0; op < ops; ++op) {
      write_key(key.data() + plan_.prefix.size(), op % plan_.keys);
      queues_[shards_.of(key)].ops.push_back(op);
    }
    rusage before{};
    rusage after{};
    ::getrusage(RUSAGE_SELF, &before);
    const Nanos start = monotonic_ns();
    wait();
    wait();
    const Nanos wall = monotonic_ns() - start;
    ::getrusage(RUSAGE_SELF, &after);
    const double user = seconds(after.ru_utime) - seconds(before.ru_utime);
    const double sys = seconds(after.ru_stime) - seconds(before.ru_stime);
    return report(ops, set, static_cast<double>(wall) / 1e9, user, sys);
  }

  void stop() {
    stopping_ = true;
    wait();
    for (auto& thread : threads_) thread.join();
  }

 private:
  static double seconds(const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  }
  void wait() { pthread_barrier_wait(&barrier_); }

  void work(std::size_t index) {
    const std::size_t shard = index % shards_.count();
    const auto channel = open_channel(options_, shards_.endpoint(shard));
    if (index == 0) tls_ = channel->tls();
    Queue& queue = queues_[shard];
    std::string request = plan_.get_head + std::string(kKeyDigits, '0') + "\r\n";
    wait();
    std::size_t own = index;  // this thread owns index, index + N, index + 2N, ...
    for (;;) {
      wait();
      if (stopping_) return;
      auto& latencies = latencies_[index];
      latencies.clear();
      for (std::size_t at;
           (at = queue.next.fetch_add(1, std::memory_order_relaxed)) < queue.ops.size();) {
        const std::size_t op = queue.ops[at];
        const Nanos start = monotonic_ns();
        const std::size_t buffer = own_buffers_ ? own : op;
        if (set_) {
          set_value(*channel, buffers_.payload(buffer), op % plan_.keys);
        } else {
          write_key(request.data() + plan_.get_head.size(), op % plan_.keys);
          channel->send_all(request);
          channel->receive_reply(buffers_.payload(buffer) - plan_.reply_head.size(),
                                 plan_.reply_head.size() + plan_.size_bytes + 2, plan_.reply_head);
        }
        latencies.push_back(monotonic_ns() - start);
        own += plan_.connections;
        if (own >= plan_.buffers) own = index;
      }
      wait();
    }
  }

  void set_value(Channel& channel, char* payload, std::size_t key) {
    char* command = payload - plan_.set_head.size();
    std::memcpy(command, plan_.set_head.data(), plan_.set_head.size());
    std::memcpy(payload + plan_.size_bytes, "\r\n", 2);
    write_key(command + plan_.set_key_at, key);
    channel.send_all({command, plan_.set_head.size() + plan_.size_bytes + 2});
    char reply[5];
    channel.receive_reply(reply, sizeof reply, "+OK\r\n");
  }

  std::string report(std::size_t ops, bool set, double wall_s, double user_s, double sys_s) {
    std::vector<Nanos> all;
    for (const auto& some : latencies_) all.insert(all.end(), some.begin(), some.end());
    std::sort(all.begin(), all.end());
    const auto percentile_ms = [&](std::size_t percent) {
      return static_cast<double>(all[(all.size() - 1) * percent / 100]) / 1e6;
    };
    const double gigabytes = static_cast<double>(ops * plan_.size_bytes) / 1e9;
    char text[512];
    std::snprintf(text, sizeof text,
                  "{\"op\":\"%s\",\"size_bytes\":%zu,\"connections\":%zu,\"ops\":%zu,\"keys\":%zu,"
                  "\"buffers\":%zu,\"waitall\":%s,\"bytes\":%zu,\"wall_s\":%.6f,\"gbps\":%.4f,"
                  "\"cpu_s\":%.6f,\"cpu_user_s\":%.6f,\"cpu_sys_s\":%.6f,\"cpu_s_per_gb\":%.5f,"
                  "\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"shards\":%zu,\"tls\":\"%s\"}",
                  set ? "set" : "get", plan_.size_bytes, plan_.connections, ops, plan_.keys,
                  plan_.buffers, plan_.waitall ? "true" : "false", ops * plan_.size_bytes, wall_s,
                  gigabytes / wall_s, user_s + sys_s, user_s, sys_s, (user_s + sys_s) / gigabytes,
                  percentile_ms(50), percentile_ms(99), shards_.count(), tls_.c_str());
    return text;
  }

  // The commands of a round that go to one shard.
  struct Queue {
    std::vector<std::size_t> ops;
    std::atomic<std::size_t> next = 0;
  };

  const Options& options_;
  const Plan& plan_;
  const Shards shards_;
  const Buffers buffers_;
  pthread_barrier_t barrier_;  // all threads + main: at the start and at the end of a round
  // Written by main while the threads wait at the barrier.
  std::vector<Queue> queues_;
  bool set_ = false;
  bool own_buffers_ = false;
  bool stopping_ = false;
  std::string tls_;  // written by the first thread before the first barrier
  std::vector<std::vector<Nanos>> latencies_;
  std::vector<kvferry::Thread> threads_;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options(argc, argv, kManual,
                        {{"--host", "127.0.0.1"},
                         {"--port", "6379"},
                         {"--unix", ""},
                         {"--op", "get"},
                         {"--size-bytes", "4194304"},
                         {"--connections", "1"},
                         {"--ops", "64"},
                         {"--keys", ""},
                         {"--buffers", ""},
                         {"--warmup", ""},
                         {"--rewarm", "0"},
                         {"--rounds", "1"},
                         {"--prefix", "floor:"},
                         {"--tls-ca", ""},
                         {"--tls-cert", ""},
                         {"--tls-key", ""},
                         {"--tls-suites",
                          "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                          "TLS_CHACHA20_POLY1305_SHA256"}},
                        {"--existing", "--waitall", "--interactive", "--cluster", "--stream",
                         "--tls", "--tls-read-ahead"});
  const Plan plan(options);
  Floor floor(options, plan);
  if (!plan.set && !options.has("--existing")) floor.round(plan.keys, true);
  const std::size_t warmup =
      options.text("--warmup").empty() ? plan.ops : options.number("--warmup");
  if (warmup != 0) floor.round(warmup, plan.set);

  const std::size_t rewarm = options.number("--rewarm");
  const auto show = [&] {
    if (rewarm != 0) floor.round(rewarm, plan.set);
    std::puts(floor.round(plan.ops, plan.set).c_str());
    std::fflush(stdout);
  };
  if (options.has("--interactive")) {
    for (int c; (c = std::getchar()) != EOF;) {
      if (c == '\n') show();
    }
  } else {
    for (std::size_t round = 0; round < plan.rounds; ++round) show();
  }
  floor.stop();
  return 0;
}
