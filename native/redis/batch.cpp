#include "redis/batch.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "codec/stripe.hpp"

namespace kvferry::redis {

void Batch::reserve(std::size_t items, std::size_t key_bytes) {
  items_.reserve(items);
  commands_.reserve(items);
  keys_.reserve(key_bytes);
}

void Batch::add(std::string_view key, MutableBytes buffer) {
  const auto item = static_cast<std::uint32_t>(items_.size());
  std::uint32_t stripes = 1;
  codec::StripePlan plan;
  if (options_.framed) {
    plan = codec::stripe_plan(buffer.size());
    stripes = std::max<std::uint32_t>(plan.count, 1);
    if (plan.count == 0 && refusal_.empty()) {
      refusal_ = "a value has " + std::to_string(buffer.size()) + " bytes; store at most " +
                 std::to_string(codec::kValueSizeBytesMax) + " under one key";
    }
  }
  const bool keyless = options_.verb == Verb::kPing || options_.verb == Verb::kCall;
  if ((key.empty() && !keyless) || key.size() > kKeyBytesMax) {
    if (refusal_.empty()) {
      refusal_ = "a key has 1 to 512 bytes, this one " + std::to_string(key.size());
    }
    key = key.substr(0, kKeyBytesMax);
  }
  items_.push_back({.first = static_cast<std::uint32_t>(commands_.size()),
                    .stripes = static_cast<std::uint16_t>(stripes),
                    .unstored = static_cast<std::uint16_t>(stripes - 1),
                    .size = buffer.size()});
  payload_bytes_ += buffer.size();
  // Stripe 0 comes last: a writer that is cut short leaves no value that looks complete.
  for (std::uint32_t left = stripes; left > 0; --left) {
    const std::uint32_t stripe = left - 1;
    Command command;
    command.key_offset = static_cast<std::uint32_t>(keys_.size());
    keys_ += key;
    if (stripe > 0) codec::append_stripe_suffix(keys_, stripe);
    command.key_length = static_cast<std::uint16_t>(keys_.size() - command.key_offset);
    command.stripe = static_cast<std::uint16_t>(stripe);
    command.deferred = options_.verb == Verb::kSet && stripes > 1 && stripe == 0;
    deferred_count_ += command.deferred ? 1 : 0;
    command.item = item;
    command.data = buffer.data();
    command.size = buffer.size();
    if (stripes > 1) {
      const auto extent = codec::stripe_extent(plan, stripe);
      if (buffer.data() != nullptr) command.data += extent.offset;
      command.size = extent.size_bytes;
    }
    commands_.push_back(command);
  }
  unsettled_.store(commands_.size(), std::memory_order_relaxed);
}

void Batch::add_call(std::string_view key, std::string request) {
  if (request.size() > kCallBytesMax && refusal_.empty()) {
    refusal_ = "a command has " + std::to_string(request.size()) + " bytes, more than " +
               std::to_string(kCallBytesMax);
  }
  calls_.push_back({.request = std::move(request), .reply = {}});
  add(key, {});
}

std::string Batch::refusal() const {
  return items_.empty() ? "the batch is empty; ask for at least one key" : refusal_;
}

std::span<Command> Batch::stripes(const Command& command) noexcept {
  const Item& item = items_[command.item];
  return std::span(commands_).subspan(item.first, item.stripes);
}

Status Batch::withdrawn(const Command& command) const noexcept {
  if (cancelled() || (source != nullptr && !source->wanted())) return Status::kCancelled;
  if (behind_prefix(command.item)) return Status::kCancelled;
  return Status::kPending;
}

bool Batch::assign_buffer(Command& command) const {
  if (source == nullptr) return true;
  std::byte* start = source->buffer(command.item);
  if (start == nullptr) return false;
  if (items_[command.item].stripes > 1) {
    start += codec::stripe_extent(codec::stripe_plan(value_size(command)), command.stripe).offset;
  }
  command.data = start;
  return true;
}

bool Batch::settle(Command& command, Status status, Reason why) {
  check(status != Status::kPending, "what settles has an outcome");
  // Pairs with progress().
  const Status before = std::atomic_ref(command.status).exchange(status, std::memory_order_acq_rel);
  check(before == Status::kPending, "a settled command is never settled again");
  if (status != Status::kOk && options_.prefix) end_prefix(command.item);
  note(why);
  return unsettled_.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

Command* Batch::released_by(const Command& command, Status& status) noexcept {
  Item& item = items_[command.item];
  if (options_.verb != Verb::kSet || command.stripe == 0) return nullptr;
  if (std::atomic_ref(item.unstored).fetch_sub(1, std::memory_order_acq_rel) != 1) return nullptr;
  const auto all = stripes(command);
  status = Status::kOk;
  for (const Command& other : all.first(all.size() - 1)) {
    if (other.status != Status::kOk) status = other.status;
  }
  return &all.back();
}

std::size_t Batch::progress() const noexcept {
  std::size_t count = 0;
  for (const Item& item : items_) {
    for (std::size_t index = item.first; index < item.first + item.stripes; ++index) {
      // The object is not const; C++20 has no atomic_ref of what is.
      const std::atomic_ref status(const_cast<Status&>(commands_[index].status));
      if (status.load(std::memory_order_acquire) != Status::kOk) return count;
    }
    std::uint64_t size = 0;
    if (combine(item, size) != Status::kOk) return count;
    ++count;
  }
  return count;
}

void Batch::results(std::uint8_t* statuses, std::uint64_t* sizes) const {
  for (std::size_t index = 0; index < items_.size(); ++index) {
    statuses[index] = static_cast<std::uint8_t>(combine(items_[index], sizes[index]));
  }
}

Status Batch::combine(const Item& item, std::uint64_t& size) const noexcept {
  const Command* first = &commands_[item.first];
  if (item.stripes == 1) {
    size = first->found;
    return first->status;
  }
  // A striped value is all or nothing: every stripe, and all of one generation.
  const std::span stripes(first, item.stripes);
  size = 0;
  for (const Command& stripe : stripes) size += stripe.found;
  if (options_.verb == Verb::kDelete) return stripes.back().status;
  Status worst = Status::kOk;
  for (const Command& stripe : stripes) {
    if (stripe.status == Status::kMiss) return Status::kMiss;
    if (stripe.status != Status::kOk && worst == Status::kOk) worst = stripe.status;
  }
  const bool mixed = std::ranges::any_of(
      stripes, [&](const Command& stripe) { return stripe.generation != first->generation; });
  return worst == Status::kOk && options_.verb == Verb::kGet && mixed ? Status::kMiss : worst;
}

}  // namespace kvferry::redis
