#include "mem/copy.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/thread.hpp"
#include "mem/copy_past_caches.hpp"

namespace kvferry::mem {
namespace {

constexpr std::size_t kPieceBytes = kMiB;
// Starting a thread takes about as long as copying this much.
constexpr std::size_t kThreadBytesMin = 2 * kMiB;
// What is smaller may be read out of a cache soon.
constexpr std::size_t kStreamBytesMin = 8 * kMiB;

}  // namespace

void copy_many(std::span<const Copy> copies, unsigned threads_max) {
  std::vector<Copy> pieces;
  std::size_t total_bytes = 0;
  for (const Copy& copy : copies) {
    for (std::size_t at = 0; at < copy.to.size(); at += kPieceBytes) {
      const std::size_t size = std::min(kPieceBytes, copy.to.size() - at);
      pieces.push_back({copy.to.subspan(at, size), copy.from.subspan(at, size)});
    }
    total_bytes += copy.to.size();
  }
  std::atomic<std::size_t> next{0};
  const bool streams = total_bytes >= kStreamBytesMin;
  const auto work = [&pieces, &next, streams] {
    for (;;) {
      // Each piece is somebody's once; joining the threads publishes what they wrote.
      const std::size_t at = next.fetch_add(1, std::memory_order_relaxed);
      if (at >= pieces.size()) return;
      if (streams) {
        copy_past_caches(pieces[at].to, pieces[at].from);
      } else {
        std::memcpy(pieces[at].to.data(), pieces[at].from.data(), pieces[at].to.size());
      }
    }
  };
  const std::size_t wanted = std::min<std::size_t>(threads_max, total_bytes / kThreadBytesMin);
  std::vector<Thread> helpers;
  helpers.reserve(wanted);
  try {
    while (helpers.size() + 1 < wanted) helpers.emplace_back("kvferry-copy", work);
  } catch (const std::system_error&) {  // Those that are there do it.
  }
  work();
  for (Thread& helper : helpers) helper.join();
}

}  // namespace kvferry::mem
