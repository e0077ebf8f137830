#pragma once
// The presence view for Python: one call per batch of keys, without a round trip, under the GIL.

#include <nanobind/nanobind.h>

#include "redis/presence/view.hpp"

namespace kvferry {

// For each key True (probably there), False (absent) or None (unknown; all are without a view).
// Raises UsageError: see key_bytes().
nanobind::list presence_of(const redis::PresenceView* view, nanobind::handle keys);

// The counters of redis::PresenceStats; of a view, zeros without one.
nanobind::dict presence_stats(const redis::PresenceStats& stats);
nanobind::dict presence_stats_of(const redis::PresenceView* view);

}  // namespace kvferry
