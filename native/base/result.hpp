#pragma once
// Result<T>: a value or an Error, never both; dropping one unread is a compiler warning.
//
// Names follow std::expected, which replaces this class once the compiler floor has it.

#include <utility>
#include <variant>

#include "base/errors.hpp"

namespace kvferry {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT implicit

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  // Requires: has_value() for the first four, !has_value() for the last.
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  [[nodiscard]] const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

// The outcome of an action that yields nothing.
struct Done {};
using Outcome = Result<Done>;

}  // namespace kvferry
