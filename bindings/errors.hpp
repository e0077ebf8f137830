#pragma once
// The one table from native errors to the exceptions of kvferry.base.errors.

#include <nanobind/nanobind.h>

#include <string_view>

#include "base/result.hpp"

namespace kvferry {

// A text that others may have had a part in, as a str; what is not UTF-8 in it is escaped.
nanobind::object readable(std::string_view text);

// The exception that stands for errors of this kind.
nanobind::object exception_class(Errc code);

// Raises the Python exception for `error`. Requires: the GIL.
[[noreturn]] void raise(const Error& error);

// The value, or its error raised.
template <typename T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}

}  // namespace kvferry
