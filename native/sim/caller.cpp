#include "sim/caller.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::sim {
namespace {

constexpr std::size_t kStripedBytes = 4 * kMiB + 4104;

}  // namespace

Nanos Caller::next() const noexcept {
  Nanos earliest = batches_left_ > 0 ? submit_at_ : kNever;
  for (const Request& request : ledger_.requests()) {
    if (!request.done) earliest = std::min(earliest, request.cancel_at);
  }
  return earliest;
}

bool Caller::done() const noexcept { return batches_left_ == 0 && ledger_.open_count() == 0; }

bool Caller::step() {
  if (ledger_.open_count() == 0 && batches_left_ == 0) return false;
  const Nanos now = context_.journal.now();
  for (Request& request : ledger_.requests()) {
    if (request.done || request.cancel_at > now) continue;
    client_.cancel(request);
    return true;
  }
  if (batches_left_ == 0 || now < submit_at_) return false;
  --batches_left_;
  Random& random = context_.random;
  const Plan& plan = context_.plan;
  // Bursts, and pauses that let connections fall quiet.
  submit_at_ = now + (random.one_in(2)   ? 0
                      : random.one_in(8) ? random.between(0, 6000) * kMilli
                                         : random.between(0, 3000) * kMicro);
  constexpr std::array kVerbs{Verb::kGet,    Verb::kGet,   Verb::kGet,    Verb::kSet, Verb::kSet,
                              Verb::kExists, Verb::kTouch, Verb::kDelete, Verb::kPing};
  redis::Batch::Options options{.verb = kVerbs[random.below(kVerbs.size())]};
  options.framed = random.one_in(2);
  options.prefix = random.one_in(4);
  if (options.verb == Verb::kSet && random.one_in(8)) options.ttl_ms = 1 + random.between(0, 50);
  const bool hasty = plan.short_deadlines && random.one_in(2);
  options.deadline = now + (hasty ? random.between(0, 6000) * kMicro : 5 * kSecond);
  Keys keys;
  const std::size_t count = 1 + random.below(plan.items_max);
  for (std::size_t index = 0; index < count; ++index) {
    keys.push_back(2 * random.below(kKeys / 2) + (options.framed ? 1 : 0));
  }
  const auto batch = submit(options, keys);
  if (batch != nullptr && plan.cancels && random.one_in(2)) {
    for (Request& request : ledger_.requests()) {
      if (request.batch != batch) continue;
      request.cancel_at = now + random.between(0, random.one_in(4) ? 300'000 : 2000) * kMicro;
    }
  }
  return true;
}

// Most reads ask for the length that was written.
std::size_t Caller::size_of(std::size_t key) noexcept {
  const std::size_t most = context_.plan.value_bytes_max;
  if (context_.plan.striped && key < 4) return kStripedBytes;
  const std::size_t usual = 8 + (key * 37) % (most - 8);
  return context_.random.one_in(8) ? context_.random.below(most) : usual;
}

std::shared_ptr<redis::Batch> Caller::submit(const redis::Batch::Options& options,
                                             const Keys& keys) {
  auto batch = std::make_shared<redis::Batch>(options);
  std::vector<Use> uses;
  const bool payload = options.verb == Verb::kGet || options.verb == Verb::kSet;
  const auto owner = ledger_.next_owner();
  for (const std::size_t key : keys) {
    Use use{.key = static_cast<std::uint8_t>(key), .version = 0, .buffer = {}};
    if (payload) {
      const std::size_t size = size_of(key);
      if (size > 0) use.buffer = context_.buffers.take(size, owner);
      if (use.buffer.size() < size) break;
      // Shorter values have no room for a version.
      if (options.verb == Verb::kSet && size >= 8) use.version = ++versions_;
      if (options.verb == Verb::kSet) fill(use.buffer, {use.key, use.version});
    }
    batch->add(key_text(key), use.buffer);
    uses.push_back(use);
  }
  if (uses.empty() || !client_.submit(batch, std::move(uses))) return nullptr;
  return batch;
}

std::shared_ptr<redis::Batch> Caller::ask(Verb verb, const Keys& keys, bool framed) {
  return submit({.verb = verb, .deadline = context_.journal.now() + 5 * kSecond, .framed = framed},
                keys);
}

}  // namespace kvferry::sim
