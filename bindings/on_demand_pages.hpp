#pragma once
// What stands behind a Python ChunkCache and a Python OnDemandPages.
//
// Requires: the GIL for on_demand_pages_of().

#include <nanobind/nanobind.h>

#include <memory>

#include "cache/chunk_cache.hpp"
#include "connector/on_demand_pages.hpp"

namespace kvferry {

// The indirection is for __init__. Shared by the ChunkCache object and OnDemandPages of it.
struct CacheOwner {
  std::shared_ptr<cache::ChunkCache> cache;
};

// The pages behind a Python object; null: it is something else.
std::shared_ptr<connector::OnDemandPages> on_demand_pages_of(nanobind::handle object);

}  // namespace kvferry
