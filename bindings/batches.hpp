#pragma once
// What clients and connectors share at the border: the arguments of a batch, the wait for it, and
// its outcome as Python has it.
//
// Requires: the GIL for everything here.

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/clock.hpp"
#include "base/log_sink.hpp"
#include "buffers.hpp"
#include "errors.hpp"
#include "gil.hpp"

namespace kvferry {

inline constexpr Nanos kSignalCheckInterval = 50 * kMilli;

// Types for the stub that nanobind cannot know.
#define KVFERRY_OUTCOME "tuple[bytes, bytes, float, str | None, type[Exception] | None]"

// One status byte per key, one u64 per key, seconds; of the first error its text, or None, and the
// exception that stands for its kind, or None where the statuses say enough.
// `request`: results(statuses, sizes), error(), elapsed().
template <typename Request>
nanobind::tuple outcome_of(const Request& request, std::size_t count) {
  namespace nb = nanobind;
  nb::object statuses = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(count)));
  nb::object sizes = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(count * 8)));
  if (!statuses.is_valid() || !sizes.is_valid()) throw nb::python_error();
  request.results(reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(statuses.ptr())),
                  reinterpret_cast<std::uint64_t*>(PyBytes_AS_STRING(sizes.ptr())));
  const double elapsed_s = static_cast<double>(request.elapsed()) / static_cast<double>(kSecond);
  nb::object error = nb::none();
  nb::object kind = nb::none();
  const Reason why = request.error();
  if (!why.text.empty()) error = readable(why.text);
  if (why.code) kind = exception_class(*why.code);
  return nb::make_tuple(std::move(statuses), std::move(sizes), elapsed_s, std::move(error),
                        std::move(kind));
}

// Keys, and buffers or None, as sequences of one length. Raises UsageError when they are not.
class BatchArguments {
 public:
  BatchArguments(nanobind::handle keys, nanobind::handle buffers);

  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] bool has_buffers() const noexcept { return buffers_.is_valid(); }
  [[nodiscard]] std::string_view key(std::size_t index) const;
  // Leases the memory of a buffer.
  MutableBytes buffer(std::size_t index, Lease& lease, bool writable) const;

 private:
  nanobind::object keys_;
  nanobind::object buffers_;
  std::size_t count_ = 0;
};

// Waits without the GIL until `request` is finished or the moment `until`; true when finished.
// Signals are looked for: when a handler has raised, `interrupted` may take what it raised and
// return true; then waiting goes on.
template <typename Request, typename Interrupted>
bool wait_for(Request& request, Nanos until, Interrupted interrupted) {
  for (;;) {
    bool finished = false;
    {
      const GilRelease released;
      finished = request.wait(std::min(until, monotonic_ns() + kSignalCheckInterval));
    }
    if (finished) return true;
    if (PyErr_CheckSignals() != 0 && !interrupted()) throw nanobind::python_error();
    if (monotonic_ns() >= until) return false;
  }
}

// What is to be logged: levels and texts, oldest first.
nanobind::list log_lines(std::initializer_list<LogSink*> sinks);

// The leases of requests that were submitted and not yet taken back, by id.
class LeaseBook {
 public:
  // `submit` gives the id; it runs under the lock, so that take() of another thread finds the
  // lease. An exception would run Python code, which must not happen there: it is for the caller.
  template <typename Submit>
  Result<std::uint64_t> keep(std::unique_ptr<Lease> lease, Submit submit) {
    const std::lock_guard lock(mutex_);  // where there is no GIL to do it
    Result<std::uint64_t> id = submit();
    if (id) leases_.emplace(*id, std::move(lease));
    return id;
  }
  // Null: there is none.
  std::unique_ptr<Lease> take(std::uint64_t id);
  // What memory is still in use at the end stays leased for good.
  void leak();

 private:
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Lease>> leases_;
};

}  // namespace kvferry
