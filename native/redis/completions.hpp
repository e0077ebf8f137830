#pragma once
// Completions of a client: its finished batches, see base/completions.hpp.

#include "base/completions.hpp"
#include "redis/batch.hpp"

namespace kvferry::redis {

using Completions = kvferry::Completions<Batch>;

}  // namespace kvferry::redis
