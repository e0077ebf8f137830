// kvferry-floor: how fast could any client be? N blocking threads, one connection each, send a
// pre-built command and receive exactly the bytes of its reply. Nothing but socket calls lies
// between the clock reads, so a client that comes near this has nothing left to give.
//
// One round is `--ops` commands, pulled by the threads from one counter, one command in flight per
// connection. Buffers are page-aligned, prefaulted and huge where the host allows. By default
// there is one per thread (it stays in cache: the cheapest floor); with as many as the batch has
// chunks, the cache footprint is that of a real client.
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
#include "bench/blocking_socket.hpp"
#include "bench/options.hpp"

namespace {

using kvferry::monotonic_ns;
using kvferry::Nanos;
using kvferry::UniqueFd;
using kvferry::bench::authenticate;
using kvferry::bench::dial;
using kvferry::bench::die;
using kvferry::bench::die_errno;
using kvferry::bench::Options;
using kvferry::bench::recv_reply;
using kvferry::bench::send_all;

constexpr const char* kManual =
    "kvferry-floor --op get|set --size-bytes N [options]\n"
    "  --host H --port P | --unix PATH   the server (127.0.0.1:6379)\n"
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
    "  --interactive     one round per line on stdin, until it ends\n"
    "A password is taken from KVFERRY_RESP_PASSWORD, a user from KVFERRY_RESP_USERNAME.\n";

constexpr std::size_t kPage = 4096;
constexpr std::size_t kKeyDigits = 10;

struct Plan {
  bool set;
  int recv_flags;
  std::size_t size_bytes, connections, ops, keys, buffers, rounds;
  std::string prefix;
  std::string get_head;  // of the request, up to the key
  std::string set_head;  // of the request, up to the payload; its key is at set_key_at
  std::size_t set_key_at;
  std::string reply_head;  // what a GET reply starts with

  explicit Plan(const Options& o)
      : set(o.text("--op") == "set"),
        recv_flags(o.has("--waitall") ? MSG_WAITALL : 0),
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
      : options_(options), plan_(plan), buffers_(plan), latencies_(plan.connections) {
    pthread_barrier_init(&barrier_, nullptr, static_cast<unsigned>(plan.connections + 1));
    for (std::size_t t = 0; t < plan.connections; ++t) {
      threads_.emplace_back("floor-" + std::to_string(t), [this, t] { work(t); });
    }
    wait();  // until every thread is connected
  }

  // One round of `ops` commands that start together. Returns the JSON text of its figures.
  std::string round(std::size_t ops, bool set) {
    next_ = 0;
    ops_ = ops;
    set_ = set;
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
    const UniqueFd fd = dial(options_);
    authenticate(fd.get());
    std::string request = plan_.get_head + std::string(kKeyDigits, '0') + "\r\n";
    wait();
    std::size_t own = index;  // this thread owns index, index + N, index + 2N, ...
    for (;;) {
      wait();
      if (stopping_) return;
      auto& latencies = latencies_[index];
      latencies.clear();
      for (std::size_t op; (op = next_.fetch_add(1, std::memory_order_relaxed)) < ops_;) {
        const Nanos start = monotonic_ns();
        // With a buffer for each command there is no need to own some.
        const std::size_t buffer = ops_ <= plan_.buffers ? op : own;
        if (set_) {
          set_value(fd.get(), buffers_.payload(buffer), op % plan_.keys);
        } else {
          write_key(request.data() + plan_.get_head.size(), op % plan_.keys);
          send_all(fd.get(), request.data(), request.size());
          recv_reply(fd.get(), buffers_.payload(buffer) - plan_.reply_head.size(),
                     plan_.reply_head.size() + plan_.size_bytes + 2, plan_.reply_head,
                     plan_.recv_flags);
        }
        latencies.push_back(monotonic_ns() - start);
        own += plan_.connections;
        if (own >= plan_.buffers) own = index;
      }
      wait();
    }
  }

  void set_value(int fd, char* payload, std::size_t key) {
    char* command = payload - plan_.set_head.size();
    std::memcpy(command, plan_.set_head.data(), plan_.set_head.size());
    std::memcpy(payload + plan_.size_bytes, "\r\n", 2);
    write_key(command + plan_.set_key_at, key);
    send_all(fd, command, plan_.set_head.size() + plan_.size_bytes + 2);
    char reply[5];
    recv_reply(fd, reply, sizeof reply, "+OK\r\n", plan_.recv_flags);
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
                  "\"p50_ms\":%.4f,\"p99_ms\":%.4f}",
                  set ? "set" : "get", plan_.size_bytes, plan_.connections, ops, plan_.keys,
                  plan_.buffers, plan_.recv_flags != 0 ? "true" : "false", ops * plan_.size_bytes,
                  wall_s, gigabytes / wall_s, user_s + sys_s, user_s, sys_s,
                  (user_s + sys_s) / gigabytes, percentile_ms(50), percentile_ms(99));
    return text;
  }

  const Options& options_;
  const Plan& plan_;
  const Buffers buffers_;
  pthread_barrier_t barrier_;  // all threads + main: at the start and at the end of a round
  // Written by main while the threads wait at the barrier.
  std::size_t ops_ = 0;
  bool set_ = false;
  bool stopping_ = false;
  std::atomic<std::size_t> next_ = 0;
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
                         {"--prefix", "floor:"}},
                        {"--existing", "--waitall", "--interactive"});
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
