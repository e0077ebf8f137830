#pragma once
// What stands behind a Python ChunkCache and a Python Landing.
//
// Requires: the GIL for landing_of().

#include <nanobind/nanobind.h>

#include <memory>

#include "cache/chunk_cache.hpp"
#include "connector/landing.hpp"

namespace kvferry {

// The indirection is for __init__. Shared by the ChunkCache object and landings of it.
struct CacheOwner {
  std::shared_ptr<cache::ChunkCache> cache;
};

// The landing behind a Python object; null: it is something else.
std::shared_ptr<connector::Landing> landing_of(nanobind::handle object);

}  // namespace kvferry
