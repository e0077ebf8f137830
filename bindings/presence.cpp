#include "presence.hpp"

#include <vector>

#include "buffers.hpp"

namespace nb = nanobind;

namespace kvferry {

nb::list presence_of(const redis::PresenceView* view, nb::handle keys) {
  const nb::object items = nb::steal(PySequence_Fast(keys.ptr(), "keys is not a sequence"));
  if (!items.is_valid()) throw nb::python_error();
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  PyObject** key = PySequence_Fast_ITEMS(items.ptr());
  std::vector<std::string_view> names(count);
  for (std::size_t index = 0; index < count; ++index) names[index] = key_bytes(key[index]);
  std::vector<redis::Presence> answers(count, redis::Presence::kUnknown);
  if (view != nullptr) view->look_up(names, answers);
  nb::list out = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!out.is_valid()) throw nb::python_error();
  for (std::size_t index = 0; index < count; ++index) {
    PyObject* answer = Py_None;
    if (answers[index] == redis::Presence::kProbable) answer = Py_True;
    if (answers[index] == redis::Presence::kAbsent) answer = Py_False;
    PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(index), Py_NewRef(answer));
  }
  return out;
}

nb::dict presence_stats_of(const redis::PresenceView* view) {
  return presence_stats(view == nullptr ? redis::PresenceStats{} : view->stats());
}

nb::dict presence_stats(const redis::PresenceStats& stats) {
  nb::dict out;
  out["nodes"] = stats.nodes;
  out["nodes_synced"] = stats.nodes_synced;
  out["keys"] = stats.keys;
  out["changing"] = stats.changing;
  out["memory_bytes"] = stats.memory_bytes;
  out["announced"] = stats.announced;
  out["asked"] = stats.asked;
  out["snapshots"] = stats.snapshots;
  out["forgotten"] = stats.forgotten;
  return out;
}

}  // namespace kvferry
