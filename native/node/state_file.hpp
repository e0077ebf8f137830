#pragma once
// State: what a store holds, in a file, from the end of one process to the start of the next.
//
// A file is read once: load() removes it before anything is served, so that a process that dies
// later does not come back with what others have replaced since. Each value has a checksum of its
// own; what does not match is left out, and so is what has expired.
//
// Format: "KVFNODE1"; for each value u32 bytes of the key, u64 bytes of the value, i64 expiry in
// Unix milliseconds, u64 XXH3-64 over those three, key and value; key; value. A u32 of all ones
// ends it. Little-endian.
// Failure: kSystem, with the path. A file that is no state, or ends early, gives what was sound.

#include <cstddef>
#include <string>

#include "base/result.hpp"
#include "node/value_store.hpp"

namespace kvferry::node {

struct Loaded {
  std::size_t values = 0;
  std::size_t left_out = 0;  // damaged, or there was no room
};

// Writes a new file beside it, and then puts it in its place; how many values.
Result<std::size_t> save_state(const ValueStore& store, const std::string& path, UnixMs now);
// A file that is not there is an empty one.
Result<Loaded> load_state(ValueStore& store, const std::string& path, UnixMs now);

}  // namespace kvferry::node
