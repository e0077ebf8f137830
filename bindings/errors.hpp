#pragma once
// The one table from native errors to the exceptions of kvferry.errors.

#include "base/result.hpp"

namespace kvferry {

// Raises the Python exception for `error`. Requires: the GIL.
[[noreturn]] void raise(const Error& error);

// The value, or its error raised.
template <typename T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}

}  // namespace kvferry
