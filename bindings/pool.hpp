#pragma once
// What stands behind a Python PagePool. Shared by that object, its pages, and caches over it; the
// last one unmaps.

#include <memory>

#include "mem/page_pool.hpp"

namespace kvferry {

struct PoolOwner {
  std::shared_ptr<mem::PagePool> pool;
};

}  // namespace kvferry
