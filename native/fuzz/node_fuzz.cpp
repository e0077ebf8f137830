// node::Session on any bytes: however they are cut the answers are the same, memory stays in its
// limits, and all pages come back.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "node/session.hpp"
#include "node/value_store.hpp"

namespace {

using kvferry::fuzz::require;
namespace node = kvferry::node;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 8;
constexpr node::UnixMs kNow = 1'000'000;

struct Rig {
  Rig() {
    limits.request = {.value_bytes_max = 64 * 1024, .text_bytes_max = 16 * 1024};
    limits.unread_bytes_max = 8 * 1024;
    limits.lease = {.count_max = 2, .bytes_max = 3 * kPage, .time_ms_max = 100};
    agent.set(7, "agent");
    auto made = node::ValueStore::create({.size_bytes = kPages * kPage,
                                          .page_size_bytes = kPage,
                                          .policy = "LRU",
                                          .arena = {.hugetlb = false, .prefault = false}},
                                         &clients);
    store = std::move(*made);
  }
  node::SessionLimits limits;
  node::Access access = *node::Access::create({});
  node::Clients clients{4, 4096, SIZE_MAX};
  node::Counters counters;
  node::Agent agent;
  node::InFlight in_flight{SIZE_MAX};
  std::unique_ptr<node::ValueStore> store;
};

// Empty: they may differ, because what is evicted or BUSY depends on what is being sent, because
// announcements come when they are delivered, because INFO tells of such things, and LEASE where
// the pages are.
std::string answers(std::string_view input, kvferry::fuzz::Cutting cutting) {
  Rig rig;
  node::Context context{*rig.store,   rig.access, rig.clients, rig.in_flight,
                        rig.counters, rig.agent,  rig.limits,  {}};
  std::string out;
  {
    node::Session session(context, *rig.clients.add("fuzz:1", kNow, nullptr));
    kvferry::fuzz::Pieces pieces(cutting, input);
    std::array<std::byte, 256> scratch;
    const auto take = [&] {
      iovec parts[3];
      std::size_t moved = 0;
      const std::size_t count = session.gather(parts);
      for (std::size_t i = 0; i < count; ++i) {
        out.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
        moved += parts[i].iov_len;
      }
      session.sent(moved, kNow);
      while (session.has_more()) session.resume(kNow);
    };
    while (!input.empty() && !session.finished()) {
      if (session.wants_bytes()) {
        iovec parts[3];
        const std::size_t count = session.plan(parts, scratch);
        std::size_t moved = 0;
        std::size_t allowed = std::min(pieces.next(), input.size());
        for (std::size_t i = 0; i < count && allowed > 0; ++i) {
          const std::size_t part = std::min(parts[i].iov_len, allowed);
          std::memcpy(parts[i].iov_base, input.data(), part);
          input.remove_prefix(part);
          moved += part;
          allowed -= part;
        }
        session.received(moved, kNow);
        while (session.has_more()) session.resume(kNow);
      }
      session.deliver();
      if (session.unsent_bytes() > 0) take();
      require(rig.store->usage().used_bytes <= kPages * kPage, "the limit does not hold");
    }
    while (session.unsent_bytes() > 0) take();
  }
  const node::ValuesUsage usage = rig.store->usage();
  const bool full = usage.evicted > 0 || usage.refused > 0;
  const bool told = rig.counters.leases.load() > 0 || out.find("invalidate") != std::string::npos ||
                    out.find("server_name:") != std::string::npos;
  rig.store->clear();
  require(rig.store->usage().used_bytes == 0, "a page did not come back");
  require(rig.in_flight.bytes() == 0, "bytes stay in flight");
  return full || told ? std::string() : out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = kvferry::fuzz::as_input(data, size);
  const std::string whole = answers(input, kvferry::fuzz::Cutting::kWhole);
  for (const auto cutting : kvferry::fuzz::kCuttings) {
    const std::string other = answers(input, cutting);
    require(whole.empty() || other.empty() || other == whole, "the cut changes the answers",
            whole + "\n" + other);
  }
  return 0;
}
