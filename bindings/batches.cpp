#include "batches.hpp"

namespace nb = nanobind;

namespace kvferry {

BatchArguments::BatchArguments(nb::handle keys, nb::handle buffers) {
  keys_ = nb::steal(PySequence_Fast(keys.ptr(), "keys is not a sequence"));
  if (!keys_.is_valid()) throw nb::python_error();
  count_ = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(keys_.ptr()));
  if (count_ == 0) raise({Errc::kInvalidArgument, "the batch is empty; pass at least one key"});
  if (buffers.is_none()) return;
  buffers_ = nb::steal(PySequence_Fast(buffers.ptr(), "buffers is not a sequence"));
  if (!buffers_.is_valid()) throw nb::python_error();
  const auto given = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(buffers_.ptr()));
  if (given != count_) {
    raise({Errc::kInvalidArgument, std::to_string(count_) + " keys but " + std::to_string(given) +
                                       " buffers; pass one buffer per key"});
  }
}

std::string_view BatchArguments::key(std::size_t index) const {
  return key_bytes(PySequence_Fast_ITEMS(keys_.ptr())[index]);
}

MutableBytes BatchArguments::buffer(std::size_t index, Lease& lease, bool writable) const {
  return lease.add(PySequence_Fast_ITEMS(buffers_.ptr())[index], writable);
}

nb::list log_lines(std::initializer_list<LogSink*> sinks) {
  std::uint64_t dropped = 0;
  nb::list lines;
  for (LogSink* sink : sinks) {
    for (const LogLine& line : sink->drain(dropped)) {
      lines.append(nb::make_tuple(static_cast<int>(line.level), readable(line.text)));
    }
  }
  return lines;
}

std::unique_ptr<Lease> LeaseBook::take(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = leases_.find(id);
  if (found == leases_.end()) return nullptr;
  std::unique_ptr<Lease> lease = std::move(found->second);
  leases_.erase(found);
  return lease;
}

void LeaseBook::leak() {
  const std::lock_guard lock(mutex_);
  for (auto& [id, lease] : leases_) {
    [[maybe_unused]] auto* leaked = lease.release();
  }
  leases_.clear();
}

}  // namespace kvferry
